// What DirectML.h and wrl/client.h declare of the names that a copied chain uses, written down from their documentation;
// CompileGraph prints what it is given.
#include <cstdio>
#define FAILED(result) ((result) < 0)
#define IID_PPV_ARGS(pointer) 0, (void**)(pointer)
typedef int HRESULT; typedef unsigned int UINT; typedef unsigned long long UINT64, SIZE_T; typedef float FLOAT;
typedef unsigned char UINT8;
enum DML_TENSOR_DATA_TYPE { DML_TENSOR_DATA_TYPE_FLOAT32 = 1, DML_TENSOR_DATA_TYPE_UINT8 = 4, DML_TENSOR_DATA_TYPE_UINT32 = 6 };
enum DML_TENSOR_FLAGS { DML_TENSOR_FLAG_NONE };
enum DML_TENSOR_TYPE { DML_TENSOR_TYPE_INVALID, DML_TENSOR_TYPE_BUFFER };
enum DML_EXECUTION_FLAGS { DML_EXECUTION_FLAG_NONE };
enum DML_AXIS_DIRECTION { DML_AXIS_DIRECTION_INCREASING, DML_AXIS_DIRECTION_DECREASING };
enum DML_OPERATOR_TYPE { DML_OPERATOR_ELEMENT_WISE_CLIP, DML_OPERATOR_JOIN, DML_OPERATOR_TILE, DML_OPERATOR_TOP_K1 };
enum DML_GRAPH_NODE_TYPE { DML_GRAPH_NODE_TYPE_INVALID, DML_GRAPH_NODE_TYPE_OPERATOR, DML_GRAPH_NODE_TYPE_CONSTANT };
enum DML_GRAPH_EDGE_TYPE { DML_GRAPH_EDGE_TYPE_INVALID, DML_GRAPH_EDGE_TYPE_INPUT, DML_GRAPH_EDGE_TYPE_OUTPUT,
  DML_GRAPH_EDGE_TYPE_INTERMEDIATE };
struct DML_BUFFER_TENSOR_DESC { DML_TENSOR_DATA_TYPE DataType; DML_TENSOR_FLAGS Flags; UINT DimensionCount;
  const UINT* Sizes; const UINT* Strides; UINT64 TotalTensorSizeInBytes; UINT GuaranteedBaseOffsetAlignment; };
struct DML_TENSOR_DESC { DML_TENSOR_TYPE Type; const void* Desc; };
struct DML_OPERATOR_DESC { DML_OPERATOR_TYPE Type; const void* Desc; };
struct DML_SCALE_BIAS { FLOAT Scale; FLOAT Bias; };
struct DML_TILE_OPERATOR_DESC { const DML_TENSOR_DESC* InputTensor; const DML_TENSOR_DESC* OutputTensor;
  UINT RepeatsCount; const UINT* Repeats; };
struct DML_ELEMENT_WISE_CLIP_OPERATOR_DESC { const DML_TENSOR_DESC* InputTensor; const DML_TENSOR_DESC* OutputTensor;
  const DML_SCALE_BIAS* ScaleBias; FLOAT Min; FLOAT Max; };
struct DML_JOIN_OPERATOR_DESC { UINT InputCount; const DML_TENSOR_DESC* InputTensors; const DML_TENSOR_DESC* OutputTensor;
  UINT Axis; };
struct DML_TOP_K1_OPERATOR_DESC { const DML_TENSOR_DESC* InputTensor; const DML_TENSOR_DESC* OutputValueTensor;
  const DML_TENSOR_DESC* OutputIndexTensor; UINT Axis; UINT K; DML_AXIS_DIRECTION AxisDirection; };
struct IDMLOperator; struct IDMLCompiledOperator;
struct DML_OPERATOR_GRAPH_NODE_DESC { IDMLOperator* Operator; const char* Name; };
struct DML_CONSTANT_DATA_GRAPH_NODE_DESC { const void* Data; SIZE_T DataSize; const char* Name; };
struct DML_GRAPH_NODE_DESC { DML_GRAPH_NODE_TYPE Type; const void* Desc; };
struct DML_INPUT_GRAPH_EDGE_DESC { UINT GraphInputIndex; UINT ToNodeIndex; UINT ToNodeInputIndex; const char* Name; };
struct DML_OUTPUT_GRAPH_EDGE_DESC { UINT FromNodeIndex; UINT FromNodeOutputIndex; UINT GraphOutputIndex; const char* Name; };
struct DML_INTERMEDIATE_GRAPH_EDGE_DESC { UINT FromNodeIndex; UINT FromNodeOutputIndex; UINT ToNodeIndex;
  UINT ToNodeInputIndex; const char* Name; };
struct DML_GRAPH_EDGE_DESC { DML_GRAPH_EDGE_TYPE Type; const void* Desc; };
struct DML_GRAPH_DESC { UINT InputCount; UINT OutputCount; UINT NodeCount; const DML_GRAPH_NODE_DESC* Nodes;
  UINT InputEdgeCount; const DML_GRAPH_EDGE_DESC* InputEdges; UINT OutputEdgeCount; const DML_GRAPH_EDGE_DESC* OutputEdges;
  UINT IntermediateEdgeCount; const DML_GRAPH_EDGE_DESC* IntermediateEdges; };
struct IDMLDevice1 {
  HRESULT CreateOperator(const DML_OPERATOR_DESC* desc, int, void**) { printf("operator %d\n", desc->Type); return 0; }
  HRESULT CompileGraph(const DML_GRAPH_DESC* graph, DML_EXECUTION_FLAGS, int, void**) {
    printf("counts %u %u %u\n", graph->InputCount, graph->OutputCount, graph->NodeCount);
    for (UINT i = 0; i < graph->NodeCount; i++) if (graph->Nodes[i].Type == DML_GRAPH_NODE_TYPE_CONSTANT) {
      auto* node = static_cast<const DML_CONSTANT_DATA_GRAPH_NODE_DESC*>(graph->Nodes[i].Desc);
      auto* data = static_cast<const float*>(node->Data);
      printf("constant %u: %llu bytes, %g to %g, %s\n", i, node->DataSize, data[0], data[node->DataSize / 4 - 1], node->Name);
    } else {
      printf("node %u: %s\n", i, static_cast<const DML_OPERATOR_GRAPH_NODE_DESC*>(graph->Nodes[i].Desc)->Name);
    }
    for (UINT i = 0; i < graph->InputEdgeCount; i++) {
      auto* edge = static_cast<const DML_INPUT_GRAPH_EDGE_DESC*>(graph->InputEdges[i].Desc);
      printf("input %u to %u.%u\n", edge->GraphInputIndex, edge->ToNodeIndex, edge->ToNodeInputIndex);
    }
    for (UINT i = 0; i < graph->IntermediateEdgeCount; i++) {
      auto* edge = static_cast<const DML_INTERMEDIATE_GRAPH_EDGE_DESC*>(graph->IntermediateEdges[i].Desc);
      printf("%u.%u to %u.%u\n", edge->FromNodeIndex, edge->FromNodeOutputIndex, edge->ToNodeIndex, edge->ToNodeInputIndex);
    }
    for (UINT i = 0; i < graph->OutputEdgeCount; i++) {
      auto* edge = static_cast<const DML_OUTPUT_GRAPH_EDGE_DESC*>(graph->OutputEdges[i].Desc);
      printf("%u.%u to output %u\n", edge->FromNodeIndex, edge->FromNodeOutputIndex, edge->GraphOutputIndex);
    }
    return 0;
  }
};
namespace Microsoft { namespace WRL { template <class T> struct ComPtr { T* held; T* Get() { return held; }
  T** operator&() { return &held; } }; } }
