/** A chain as text to copy: Python, JavaScript, and the structs of a DirectML graph in C++. */

import { absolute, hasKey } from "./api.js";
import { describe } from "./operators.js";
import { jsonOf, operatorLines, pythonValue, sendLines } from "./snippets.js";
import { INPUT, titleOf } from "./steps.js";
import { toFloat16 } from "./tensor.js";

/** With the SDK's `run_graph`. @param {object} graph the document */
export function chainPythonOf(graph, names, { level, backend }) {
  const framed = !names.input.endsWith(".npy"), outputs = Object.keys(graph.outputs);
  const options = [...(backend && backend !== "auto" ? [`backend="${backend}"`] : []), ...(level ? [`feature_level="${level}"`] : [])];
  const given = [framed ? "graph, tensors" : `graph, {"${INPUT}": x}`, ...options].join(", ");
  const single = outputs.length === 1;
  return [
    "import numpy as np",
    ...(framed ? ["from safetensors.numpy import load_file"] : []),
    "from tensorpost import Client",
    "",
    `graph = ${pythonValue(graph)}`,
    framed ? `tensors = load_file("${names.input}")` : `x = np.load("${names.input}")`,
    "",
    `with Client("${absolute(".").replace(/\/$/, "")}") as tp:${hasKey() ? "  # the key: TENSORPOST_API_KEY" : ""}`,
    `    ${single ? "y" : "outputs"} = tp.run_graph(${given})${single ? `["${outputs[0]}"]` : ""}`,
    ...(!single ? ["for name, output in outputs.items():", "    print(name, output.dtype, output.shape)"]
      : [names.output.endsWith(".npy") ? `np.save("${names.output}", y)` : "print(y.dtype, y.shape)"]),
    "",
  ].join("\n");
}

/** With fetch; the graph is written out where it is in the query, and in the file where the body holds it. */
export function chainJavascriptOf(graph, call, names) {
  const [path, query] = call.path.split("?"), rest = new URLSearchParams(query);
  rest.delete("graph");
  const options = rest.toString() && `&${rest}`;
  const inQuery = new URLSearchParams(query).has("graph");
  const address = inQuery ? `\`${absolute(path)}?graph=\${encodeURIComponent(JSON.stringify(graph))}${options}\`` : JSON.stringify(absolute(call.path));
  return sendLines(address, call, names, inQuery ? `const graph = ${jsonOf(graph)};\n` : "");
}

// ---- DirectML --------------------------------------------------------------------------------------------------------

const C_TYPES = { F32: "FLOAT", F64: "double", U8: "UINT8", U16: "UINT16", U32: "UINT32", U64: "UINT64", I8: "INT8", I16: "INT16", I32: "INT32", I64: "INT64" };

/**
 * The structs of DirectML.h for a chain of DirectML operators, and the calls that compile it.
 *
 * @param {object} graph the document
 * @param {object[]} steps
 * @param {object[]} walked what `walk` found of the steps; their verdicts have complete descriptors
 * @param {string} level the lowest feature level of the whole
 */
export async function chainStructsOf(graph, steps, walked, level) {
  const other = steps.findIndex(({ operator }) => operator.dialect === "onnx");
  if (other >= 0) return `// ${titleOf(steps[other], other)}, is an ONNX node. A DML_GRAPH_DESC has DirectML's operators only, so this chain has no such form.\n`;
  const body = [], constants = Object.entries(graph.constants ?? {});
  for (const [index, step] of steps.entries()) {
    const variable = `step${index + 1}`;
    body.push(`// ${titleOf(step, index)}`);
    await operatorLines(walked[index].verdict.op, variable, body);
    body.push(`Microsoft::WRL::ComPtr<IDMLOperator> ${variable}_operator;`, `result = device->CreateOperator(&${variable}, IID_PPV_ARGS(&${variable}_operator));`,
      "if (FAILED(result)) return result;", `DML_OPERATOR_GRAPH_NODE_DESC ${variable}_node = {${variable}_operator.Get(), ${JSON.stringify(step.name)}};`, "");
  }
  for (const [index, [name, { dtype, data }]] of constants.entries()) body.push(...constantLines(`constant${index + 1}`, name, dtype, data));
  const nodes = [...steps.map((_, index) => `{DML_GRAPH_NODE_TYPE_OPERATOR, &step${index + 1}_node}`),
    ...constants.map((_, index) => `{DML_GRAPH_NODE_TYPE_CONSTANT, &constant${index + 1}_node}`)];
  body.push(`DML_GRAPH_NODE_DESC nodes[] = {\n        ${nodes.join(",\n        ")},\n    };`, "");
  const edges = await edgesOf(graph, steps, walked, constants.map(([name]) => name));
  body.push(...edgeLines("input", edges.input, "graph input, to node, its input"),
    ...edgeLines("intermediate", edges.intermediate, "from node, its output, to node, its input"),
    ...edgeLines("output", edges.output, edges.unread ? "from node, its output, graph output; DirectML wants outputs that no step reads connected too" : "from node, its output, graph output"));
  const list = (kind) => (edges[kind].length ? `${kind}Edges` : "NULL");
  body.push("DML_GRAPH_DESC graph = {", "    .InputCount = 1,", `    .OutputCount = ${edges.output.length},`, `    .NodeCount = ${nodes.length},`, "    .Nodes = nodes,",
    ...["input", "output", "intermediate"].flatMap((kind) => [`    .${kind[0].toUpperCase()}${kind.slice(1)}EdgeCount = ${edges[kind].length},`, `    .${kind[0].toUpperCase()}${kind.slice(1)}Edges = ${list(kind)},`]),
    "};", "return device->CompileGraph(&graph, DML_EXECUTION_FLAG_NONE, IID_PPV_ARGS(compiled));");
  const needed = constants.length ? [level, "6_2"].sort((a, b) => Number(a.replace("_", ".")) - Number(b.replace("_", "."))).at(-1) : level;
  const lines = body.map((line) => (line ? `    ${line}` : "")).join("\n");
  return `#include <DirectML.h>\n#include <wrl/client.h>\n\n// Feature level ${needed} or later.${constants.length ? " Constant nodes need 6_2." : ""}
HRESULT CompileChain(IDMLDevice1* device, IDMLCompiledOperator** compiled) {\n    HRESULT result;\n\n${lines}\n}\n`;
}

function constantLines(variable, name, dtype, data) {
  const half = dtype === "F16";
  const values = data.map((value) => (dtype === "F32" ? `${floatLiteral(value)}f` : half ? `0x${toFloat16(value).toString(16).padStart(4, "0")}` : dtype === "F64" ? floatLiteral(value) : value));
  return [`static const ${half ? "UINT16" : C_TYPES[dtype]} ${variable}[] = {${values.join(", ")}};${half ? " // bits of float16" : ""}`,
    `DML_CONSTANT_DATA_GRAPH_NODE_DESC ${variable}_node = {${variable}, sizeof(${variable}), ${JSON.stringify(name)}};`, ""];
}

const floatLiteral = (value) => (/[.e]/.test(String(value)) ? String(value) : `${value}.0`);

/** The numbers of every edge, in the order of the structs' fields. */
async function edgesOf(graph, steps, walked, constants) {
  const edges = { input: [], intermediate: [], output: [], unread: false }, places = new Map(steps.map(({ name }, index) => [name, index]));
  for (const [to, node] of graph.nodes.entries()) {
    let position = 0; // among all input tensors of the struct, those that are absent too
    for (const { field, array } of steps[to].operator.inputs) {
      const read = array ? node.inputs[field] ?? [] : [node.inputs[field]];
      for (const reference of read) {
        if (reference === INPUT) edges.input.push([0, to, position]);
        else if (constants.includes(reference)) edges.intermediate.push([steps.length + constants.indexOf(reference), 0, to, position]);
        else if (reference) {
          const [name, output] = reference.split("."), from = places.get(name);
          edges.intermediate.push([from, await outputIndex(walked[from].verdict, output), to, position]);
        }
        position += 1;
      }
    }
  }
  for (const reference of Object.values(graph.outputs)) {
    const [name, output] = reference.split("."), from = places.get(name);
    edges.output.push([from, await outputIndex(walked[from].verdict, output), edges.output.length]);
  }
  for (const from of steps.keys()) {
    for (const { name } of walked[from].verdict.outputs) {
      const index = await outputIndex(walked[from].verdict, name);
      const connected = edges.intermediate.some(([node, output]) => node === from && output === index) || edges.output.some(([node, output]) => node === from && output === index);
      if (!connected) edges.unread = Boolean(edges.output.push([from, index, edges.output.length]));
    }
  }
  return edges;
}

/** The position of an output among all output tensors of the struct, those that are absent too. */
async function outputIndex({ op, outputs }, name = outputs[0].name) {
  const { fields } = await describe(op.type.replace("DML_OPERATOR_", "").toLowerCase());
  const all = fields.filter(({ kind }) => kind === "output");
  return all[0].array ? Number(name.split("_").at(-1)) : all.findIndex(({ tensor }) => tensor === name);
}

function edgeLines(kind, edges, note) {
  if (!edges.length) return [];
  const type = kind.toUpperCase();
  return [`// ${note}`, ...edges.map((numbers, index) => `DML_${type}_GRAPH_EDGE_DESC ${kind}Edge${index} = {${numbers.join(", ")}};`),
    `DML_GRAPH_EDGE_DESC ${kind}Edges[] = {${edges.map((_, index) => `{DML_GRAPH_EDGE_TYPE_${type}, &${kind}Edge${index}}`).join(", ")}};`, ""];
}
