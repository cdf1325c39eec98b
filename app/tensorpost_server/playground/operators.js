/** Operators as the catalogue describes them: their fields, what to fill in first, and calls made of what was filled in. */

import { getJson } from "./api.js";
import { writeFrame } from "./frame.js";
import { writeNpy } from "./npy.js";
import { DATA_TYPES } from "./tensor.js";

const NPY = "application/x-npy", FRAME = "application/vnd.safetensors";
let catalogue = null;
const described = new Map();

/** Reads the catalogue; of ONNX operators the newest version of each. */
export async function loadCatalogue() {
  const { operators, onnx } = await getJson("v1/operators");
  catalogue = {
    directml: new Map(operators.map((entry) => [entry.name, entry])),
    onnx: new Map(onnx.filter((entry) => entry.last_opset === null).map((entry) => [entry.op_type, entry])),
  };
  return catalogue;
}

export function featureLevels() {
  const levels = [...catalogue.directml.values()].flatMap((entry) =>
    entry.fields.flatMap((field) => (field.support ?? []).map((row) => row.feature_level)),
  );
  const number = (level) => Number(level.replace("_", "."));
  return [...new Set(levels)].sort((a, b) => number(b) - number(a));
}

/** The entry of one DirectML operator with the JSON schema of its descriptor; asked for once. */
export function describe(name) {
  if (!described.has(name)) described.set(name, getJson(`v1/operators/${name}`));
  return described.get(name);
}

/** @param {string} id `directml:tile` or `onnx:Resize` */
export async function loadOperator(id) {
  const [dialect, name] = id.split(":");
  if (dialect === "onnx") return onnxOperator(catalogue.onnx.get(name));
  return directmlOperator(await describe(name));
}

function directmlOperator(entry) {
  const attributes = entry.fields.filter((field) => field.kind === "attribute" && (field.required || !field.name.endsWith("Count")));
  return {
    id: `directml:${entry.name}`, dialect: "directml", name: entry.name, summary: entry.summary,
    inputOrder: entry.fields.filter((field) => field.kind === "input").map((field) => field.name),
    inputs: entry.fields.filter((field) => field.kind === "input").map((field) => ({
      field: field.name, name: field.tensor.replace(/_0$/, ""), array: field.array, optional: field.optional,
      types: [...new Set(field.support.flatMap((row) => row.data_types))],
    })),
    fields: attributes.map((field) => fieldOf(field, entry.json_schema.properties[field.name])),
  };
}

function fieldOf({ name, query, required, array, type }, schema) {
  const property = schema.anyOf?.find((each) => each.type !== "null") ?? schema;
  const field = { key: query, label: name.replace(/(?<=[a-z])(?=[A-Z])/g, " "), path: name, required, kind: "json" };
  if (schema.default !== undefined && schema.default !== null) field.default = schema.default;
  if (property.enum) {
    const named = property.enum.filter((each) => typeof each === "string" && !each.startsWith("DML_"));
    if (typeof field.default === "number") field.default = named[field.default];
    return { ...field, kind: "choice", choices: named };
  }
  if (property.type === "boolean") return { ...field, kind: "choice", choices: ["false", "true"] };
  if (property.type === "array" && property.items?.type) return { ...field, kind: "numbers", whole: property.items.type === "integer" };
  if (property.type === "number" || property.type === "integer") return { ...field, kind: "number", whole: property.type === "integer" };
  return { ...field, structure: array ? null : type };
}

/** Ids of operators by the names that documents may call them: `DML_OPERATOR_TILE`, `TILE`, `tile`; ONNX's as they are. */
export function idOf({ type, op_type: opType }) {
  const name = String(opType ?? type ?? ""), short = name.toLowerCase().replace(/^dml_operator_/, "");
  if (opType !== undefined) return catalogue.onnx.has(name) ? `onnx:${name}` : null;
  return catalogue.directml.has(short) ? `directml:${short}` : null;
}

function onnxOperator(entry) {
  const kinds = { INT: "number", FLOAT: "number", INTS: "numbers", FLOATS: "numbers", STRING: "text", TENSOR: "json" };
  const values = entry.inputs.filter((input) => input.role === "value").map((input) => ({
    key: input.name, label: input.name, path: input.name, required: !input.optional, kind: "numbers", value: true,
  }));
  const attributes = entry.attributes.map((attribute) => ({
    key: attribute.name, label: attribute.name, path: attribute.name, required: attribute.required,
    kind: attribute.choices?.length ? "choice" : attribute.name === "to" ? "type" : kinds[attribute.type] ?? "text",
    whole: attribute.type.startsWith("INT"), choices: attribute.choices?.map(String),
    ...(attribute.default !== null && attribute.default !== undefined && { default: attribute.default }),
  }));
  return {
    id: `onnx:${entry.op_type}`, dialect: "onnx", name: entry.op_type, summary: entry.summary, opset: entry.since_version,
    inputs: entry.inputs.filter((input) => input.role === "tensor").map((input) => ({
      field: input.name, name: input.name, array: Boolean(input.variadic), optional: input.optional, types: input.types,
    })),
    inputOrder: entry.inputs.map((input) => input.name),
    fields: [...values, ...attributes],
  };
}

// ---- what to fill in first ------------------------------------------------------------------------------------------

const NUMBERS = { GroupCount: 1, BlockSize: 2, blocksize: 2, K: 1, k: 1, P: 2, Epsilon: 1e-5, LocalSize: 3, Steepness: 1, Max: 1,
  Alpha: 1, Beta: 0.5, Gamma: 1, Exponent: 2, Scale: 1, SpatialScale: 1, SpatialScaleX: 1, SpatialScaleY: 1, MaximumSamplesPerOutput: 2,
  MinimumSamplesPerOutput: 1, HeadCount: 1, LearningRate: 0.01, SigmoidInputScale: 1, Bias: 0, Threshold: 0.5, ValueDelta: 1,
  DiagonalFillEnd: 1 };

/** What a field holds at first, as text; "" where it is left out. */
export function suggest(field, { dialect, name }, shape) {
  const rank = shape.length, spatial = Math.max(rank - 2, 1), list = (length, value) => Array(length).fill(value);
  const lastTwo = (value, other) => shape.map((_, axis) => (axis >= rank - 2 ? value : other));
  if (field.default !== undefined) return dialect === "onnx" ? "" : String(field.default);
  if (!field.required && !(dialect === "onnx" && name === "Resize" && field.key === "scales")) return "";
  const usual = { InterpolationMode: "LINEAR", RoundingDirection: "DECREASING" }[field.path];
  if (usual) return usual;
  if (field.kind === "choice") return field.choices.find((choice) => !["UNKNOWN", "NONE"].includes(choice)) ?? "";
  if (field.kind === "type") return "float32";
  if (field.kind === "number") {
    if (field.path === "Axis") return String(rank - 1);
    return String(NUMBERS[field.path] ?? (field.path.endsWith("DimensionCount") ? rank : 0));
  }
  if (field.structure === "SIZE_2D") return '{"Width": 2, "Height": 2}';
  if (field.structure === "SCALAR_UNION") return "1";
  if (field.kind !== "numbers") return "";
  const windows = ["average_pooling", "max_pooling", "lp_pooling", "convolution", "fold", "unfold", "pooling"].some((part) => name.includes(part));
  const numbers = {
    Repeats: () => lastTwo(2, 1), repeats: () => lastTwo(2, 1), Scales: () => lastTwo(2, 1), scales: () => lastTwo(2, 1),
    InputPixelOffsets: () => list(rank, 0.5), OutputPixelOffsets: () => list(rank, -0.5),
    Axes: () => (dialect === "onnx" ? [-1] : [rank - 1]), axes: () => [-1], Sizes: () => shape.map((size) => Math.ceil(size / 2)),
    InputWindowSizes: () => shape, InputWindowStrides: () => lastTwo(2, 1), Bias: () => list(shape.at(-3) ?? 1, 0),
    WindowSize: () => list(spatial, 2), WindowSizes: () => list(spatial, 2), Dilations: () => list(spatial, 1),
    Strides: () => list(windows ? spatial : rank, name.includes("pooling") ? 2 : 1), shape: () => shape, axis: () => [0], depth: () => [2], K: () => [1], k: () => [1],
  }[field.path];
  if (numbers) return numbers().join(", ");
  if (field.path === "StartPadding" || field.path === "EndPadding") return (windows ? list(spatial, 0) : lastTwo(4, 0)).join(", ");
  return list(windows ? spatial : rank, 0).join(", ");
}

// ---- calls ----------------------------------------------------------------------------------------------------------

/** What was filled in, as JSON has it. @throws {Error} what cannot be read, with the field's name */
function parse(field, text) {
  const compact = text.trim();
  const number = (part) => {
    const value = Number(part);
    if (part === "" || Number.isNaN(value)) throw new Error(`${field.label}: “${part || compact}” is not a number.`);
    return value;
  };
  if (field.kind === "numbers") return compact.replace(/[[\]()]/g, "").split(/[\s,]+/).filter(Boolean).map(number);
  if (field.kind === "number") return number(compact);
  if (field.kind === "type") return Number.isNaN(Number(compact)) ? compact : Number(compact); // a name, or ONNX's number
  if (field.kind === "choice") return ["true", "false"].includes(compact) ? compact === "true" : field.whole ? Number(compact) : compact;
  if (field.kind !== "json") return compact;
  try {
    return JSON.parse(compact);
  } catch {
    throw new Error(`${field.label}: write it as JSON, for instance {"Scale": 2, "Bias": 0}.`);
  }
}

/** What was filled in, field by field; fields that are left out have no entry. */
function given({ fields }, texts) {
  return fields.filter((field) => (texts[field.key] ?? "").trim() !== "").map((field) => [field, parse(field, texts[field.key])]);
}

/**
 * What is said about the output, where it does not follow: sizes, type, or both; the rest is the first input's.
 *
 * @returns {{sizes: number[], type: string} | null} null where nothing is said
 */
export function outputOf(sizesText, type, tensors) {
  const sizes = sizesText.split(/[\s,×]+/).filter(Boolean).map(Number), first = Object.values(tensors)[0];
  if (!sizes.length && !type) return null;
  const known = first && DATA_TYPES[first.type].directml;
  return { sizes: sizes.length ? sizes : first?.shape ?? [1], type: type || known || "FLOAT32" };
}

/** The operator document of a DirectML call, or the node document of an ONNX one. */
export function documentOf(operator, texts, tensors, output) {
  const values = given(operator, texts);
  if (operator.dialect === "onnx") {
    const inputs = {}, attributes = {};
    for (const [name, { type, shape }] of Object.entries(tensors)) inputs[name] = { data_type: DATA_TYPES[type].onnx, shape };
    for (const [field, value] of values) (field.value ? inputs : attributes)[field.key] = value;
    return { op_type: operator.name, opset: operator.opset, inputs, attributes };
  }
  const desc = {};
  for (const input of operator.inputs) {
    const tensorDescs = Object.entries(tensors)
      .filter(([name]) => (input.array ? name.replace(/_\d+$/, "") : name) === input.name)
      .map(([, { type, shape }]) => ({ DataType: DATA_TYPES[type].directml ?? type, Sizes: shape }));
    if (tensorDescs.length) desc[input.field] = input.array ? tensorDescs : tensorDescs[0];
  }
  for (const [field, value] of values) desc[field.path] = value;
  if (output) desc.OutputTensor = { DataType: output.type, Sizes: output.sizes };
  return { type: operator.name.toUpperCase(), desc };
}

/** The call's path with its query, and how its body and its answer are written. */
export function callOf(operator, texts, tensors, { output = null, level = "", backend = "", outputs = 1, answerType = "float32" }) {
  const query = new URLSearchParams();
  if (operator.dialect === "onnx") query.set("opset", operator.opset);
  for (const [field, value] of given(operator, texts)) {
    query.set(field.key, Array.isArray(value) && field.kind === "numbers" ? value.join(",") : typeof value === "object" ? JSON.stringify(value) : value);
  }
  if (output) {
    query.set("output_sizes", output.sizes.join(","));
    query.set("output_data_type", output.type);
  }
  if (level && operator.dialect === "directml") query.set("feature_level", level);
  if (backend && backend !== "auto") query.set("backend", backend);
  const text = query.toString().replaceAll("%2C", ",");
  const single = Object.keys(tensors).length < 2;
  return {
    path: `v1/${operator.dialect === "onnx" ? "onnx" : "operators"}/${operator.name}${text ? `?${text}` : ""}`,
    contentType: single ? NPY : FRAME,
    accept: outputs === 1 && answerType in DATA_TYPES ? NPY : FRAME,
  };
}

const MOST_QUERY = 6000; // characters; proxies cut addresses at 8 KiB

/**
 * The call of a graph: in the query with an npy body, or in the metadata of a frame where it is too long for an address.
 *
 * @returns {{path: string, contentType: string, accept: string, metadata?: {graph: string}}}
 */
export function graphCallOf(graph, { level = "", backend = "", answerType = "float32" }) {
  const text = JSON.stringify(graph), query = new URLSearchParams();
  if (level) query.set("feature_level", level);
  if (backend && backend !== "auto") query.set("backend", backend);
  const accept = Object.keys(graph.outputs).length === 1 && answerType in DATA_TYPES ? NPY : FRAME;
  const call = { path: `v1/graphs${query.size ? `?${query}` : ""}`, contentType: FRAME, accept, metadata: { graph: text } };
  query.set("graph", text);
  return String(query).length > MOST_QUERY ? call : { path: `v1/graphs?${query}`, contentType: NPY, accept };
}

/** The bytes of the body; an empty one for operators without inputs. */
export function bodyOf(tensors, { metadata } = {}) {
  if (metadata) return writeFrame(tensors, metadata);
  const all = Object.values(tensors);
  return all.length === 0 ? new Uint8Array() : all.length === 1 ? writeNpy(all[0]) : writeFrame(tensors);
}

export const fileSuffix = (mediaType) => (mediaType?.startsWith(NPY) ? "npy" : "safetensors");

/**
 * The call that shows along one axis where outputs read, for operators that treat each axis alike.
 *
 * @returns {((axis: -1 | -2) => {path: string, length: number, axis: number}) | null} null for other operators
 */
export function tapProbe(operator, texts, shape) {
  const { id, fields } = operator;
  const perAxis = { Repeats: 1, repeats: 1, Scales: 1, scales: 1, InputPixelOffsets: 0.5, OutputPixelOffsets: -0.5 };
  const tiles = /:(tile|Tile)$/.test(id);
  if (!tiles && !/:(resample[123]?|Resize|Upsample)$/.test(id)) return null;
  if (id.startsWith("onnx") && ["sizes", "roi", "axes"].some((name) => texts[name]?.trim())) return null;
  return (axis) => {
    const other = {};
    for (const field of fields) {
      const text = (texts[field.key] ?? "").trim();
      if (!(field.path in perAxis) || !text) { other[field.key] = text; continue; }
      const neutral = Array(4).fill(perAxis[field.path]);
      neutral[4 + axis] = parse(field, text).at(axis) ?? perAxis[field.path];
      other[field.key] = neutral.join(",");
    }
    const length = shape.at(axis) ?? 1;
    return { path: callOf(operator, other, {}, {}).path, length: tiles ? Math.min(length, 4) : length, axis, tiles };
  };
}
