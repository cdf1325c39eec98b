/** The current call as text to copy: JSON, curl, Python, JavaScript, C. */

import { absolute, hasKey } from "./api.js";
import { describe, fileSuffix } from "./operators.js";
import { DATA_TYPES } from "./tensor.js";

const shellQuoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** The address with everything a shell or a source text would misread percent-encoded; commas stay. */
const addressOf = ({ path }) => absolute(path);

export function curlOf(call, names) {
  const lines = [`curl -sS --fail-with-body ${shellQuoted(addressOf(call))}`];
  if (hasKey()) lines.push('-H "authorization: Bearer $TENSORPOST_API_KEY"');
  lines.push(`-H 'content-type: ${call.contentType}'`);
  if (call.accept !== call.contentType) lines.push(`-H 'accept: ${call.accept}'`);
  lines.push(names.input ? `--data-binary @${names.input}` : "--data-binary ''");
  lines.push(`-o ${names.output}`);
  return lines.join(" \\\n  ");
}

/** Media types of pictures that the server reads and writes. */
const PICTURES = ["image/png", "image/jpeg", "image/webp", "image/avif"];

/** Whether the picture's own bytes make the same call: one picture in, one out, in a type that pictures can have. */
export function takesPicture({ file, mediaType, reduced }, tensors, verdict) {
  const [input, ...others] = Object.values(tensors), [output] = verdict.outputs;
  return Boolean(file && !reduced && PICTURES.includes(mediaType) && input && !others.length && verdict.outputs.length === 1
    && ["uint8", "float32"].includes(input.type) && output.dtype === input.type
    && output.shape.length === 4 && output.shape[0] === 1 && [1, 3, 4].includes(output.shape[1]));
}

/** The call with the picture as it is: the server decodes it, and answers with a picture. */
export function pictureCurlOf(call, { name, mediaType }, type) {
  const parameters = `layout=NCHW${type === "float32" ? "; dtype=float32" : ""}`;
  const picture = { ...call, contentType: `${mediaType}; ${parameters}`, accept: "image/png" };
  return curlOf(picture, { input: shellQuoted(name), output: "output.png" });
}

export const javascriptOf = (call, names) => sendLines(JSON.stringify(addressOf(call)), call, names);

/** @param {string} address a JavaScript expression @param {string} before lines that it needs */
export function sendLines(address, call, names, before = "") {
  const headers = [`    "Content-Type": "${call.contentType}",`, `    Accept: "${call.accept}",`];
  if (hasKey()) headers.push("    Authorization: `Bearer ${process.env.TENSORPOST_API_KEY}`,");
  return `// Node.js, as a module. In a browser, the body may be a File.
import { readFile, writeFile } from "node:fs/promises";

${before}const answer = await fetch(${address}, {
  method: "POST",
  headers: {
${headers.join("\n")}
  },${names.input ? `\n  body: await readFile("${names.input}"),` : '\n  body: "",'}
});
if (!answer.ok) throw new Error((await answer.json()).detail);
await writeFile("${names.output}", new Uint8Array(await answer.arrayBuffer()));
`;
}

export function pythonOf(call, names, verdict, { level, backend }) {
  const server = absolute(".").replace(/\/$/, "");
  const onnx = "op_type" in verdict.op, inputs = verdict.inputs.length, outputs = verdict.outputs.length;
  const options = [];
  if (backend && backend !== "auto") options.push(`backend="${backend}"`);
  if (level && !onnx) options.push(`feature_level="${level}"`);
  const arguments_ = [inputs === 0 ? "" : inputs === 1 ? "x" : "tensors", ...options].filter(Boolean);
  const simple = verdict.op.type === "DML_OPERATOR_TILE";
  const lines = ["import numpy as np"];
  if (inputs > 1) lines.push("from safetensors.numpy import load_file");
  lines.push(simple || onnx ? "from tensorpost import Client" : "from tensorpost import Client, parse_operator");
  lines.push(...(onnx ? ["from tensorpost.onnx import OnnxNode"] : []), "");
  if (inputs === 1) lines.push(`x = np.load("${names.input}")`);
  if (inputs > 1) lines.push(`tensors = load_file("${names.input}")`);
  if (!simple) lines.push(`operator = ${onnx ? "OnnxNode.from_json" : "parse_operator"}(${pythonValue(shorter(verdict.op))})`);
  lines.push("", `with Client("${server}") as tp:${hasKey() ? "  # the key: TENSORPOST_API_KEY" : ""}`);
  const target = outputs === 1 ? "y" : "outputs";
  const repeats = simple && `(${verdict.op.desc.Repeats.join(", ")}${verdict.op.desc.Repeats.length === 1 ? "," : ""})`;
  lines.push(`    ${target} = ${simple ? `tp.tile(x, ${[repeats, ...options].join(", ")})` : `tp.run(${["operator", ...arguments_].join(", ")})`}`);
  if (outputs === 1 && names.output.endsWith(".npy")) lines.push(`np.save("${names.output}", y)`);
  else if (outputs > 1) lines.push("for output in outputs:", "    print(output.dtype, output.shape)");
  else lines.push("print(y.dtype, y.shape)");
  return `${lines.join("\n")}\n`;
}

/** The document without what follows from the rest. */
function shorter(value) {
  const dropped = ["Flags", "TotalTensorSizeInBytes", "GuaranteedBaseOffsetAlignment", "DimensionCount"];
  if (Array.isArray(value)) return value.map(shorter);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).filter(([key]) => !dropped.includes(key)).map(([key, each]) => [key, shorter(each)]));
}

export function pythonValue(value, indent = "") {
  const deeper = `${indent}    `;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const list = Array.isArray(value);
  const parts = list ? value.map((each) => pythonValue(each, deeper)) : Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${pythonValue(each, deeper)}`);
  const [open, close] = list ? "[]" : "{}";
  const line = `${open}${parts.join(", ")}${close}`;
  return line.length + indent.length <= 72 ? line : `${open}\n${parts.map((part) => `${deeper}${part},`).join("\n")}\n${indent}${close}`;
}

export function jsonOf(document_) {
  // Lists of numbers stay on a line.
  return JSON.stringify(document_, null, 2).replace(/\[[^[\]{}]*\]/g, (list) => list.replace(/\s+/g, " ").replace("[ ", "[").replace(" ]", "]"));
}

// ---- C --------------------------------------------------------------------------------------------------------------

/** The structs of DirectML.h for a complete operator document. */
export async function structsOf(verdict) {
  const document_ = "op_type" in verdict.op ? verdict.lowering?.op : verdict.op;
  if (!document_) return `// No single DirectML operator computes this node: ${verdict.lowering?.reason ?? "it is not known there"}.\n`;
  const note = "op_type" in verdict.op ? `// ${verdict.lowering.verdict}${verdict.lowering.reason ? `: ${verdict.lowering.reason}` : ""}\n` : "";
  const lines = [];
  await operatorLines(document_, OPERATOR, lines);
  return `${note}#include <DirectML.h>\n\n${lines.join("\n")}\n`;
}

const OPERATOR = "operatorDesc";
const lowerFirst = (name) => name[0].toLowerCase() + name.slice(1);

export async function operatorLines({ type, desc }, variable, lines) {
  const short = type.replace("DML_OPERATOR_", ""), { fields, json_schema: schema } = await describe(short.toLowerCase());
  const prefix = variable === OPERATOR ? "" : `${variable}_`;
  const members = [];
  for (const field of fields) {
    const value = desc[field.name], name = `${prefix}${lowerFirst(field.name)}`;
    members.push(`    .${field.name} = ${await memberOf(field, value, name, lines, schema, desc)},`);
  }
  const struct = variable === OPERATOR ? lowerFirst(camel(short)) : `${variable}Desc`;
  lines.push(`DML_${short}_OPERATOR_DESC ${struct} = {`, ...members, "};", `DML_OPERATOR_DESC ${variable} = {DML_OPERATOR_${short}, &${struct}};`);
}

const camel = (short) => short.toLowerCase().replace(/(^|_)([a-z0-9])/g, (_, __, letter) => letter.toUpperCase());

async function memberOf(field, value, name, lines, schema, desc) {
  if (value === null || value === undefined) return field.type === "UINT" || field.type === "INT" ? "0" : field.type === "BOOL" ? "FALSE" : "NULL";
  switch (field.type) {
    case "TENSOR_DESC":
      tensorLines(value, name, lines);
      return `&${name}`;
    case "TENSOR_DESC_ARRAY":
      value.forEach((each, index) => tensorLines(each, `${name}${index}`, lines));
      lines.push(`DML_TENSOR_DESC ${name}[] = {${value.map((_, index) => `${name}${index}`).join(", ")}};`);
      return name;
    case "OPERATOR_DESC":
      await operatorLines(value, name, lines);
      return `&${name}`;
    case "OPERATOR_DESC_ARRAY":
      for (const [index, each] of value.entries()) await operatorLines(each, `${name}${index}`, lines);
      lines.push(`DML_OPERATOR_DESC ${name}[] = {${value.map((_, index) => `${name}${index}`).join(", ")}};`);
      return name;
    case "SCALE_BIAS":
      lines.push(`DML_SCALE_BIAS ${name} = {${floatText(value.Scale)}, ${floatText(value.Bias)}};`);
      return `&${name}`;
    case "SIZE_2D":
      return `{${value.Width}, ${value.Height}}`;
    case "SCALAR_UNION": {
      const type = desc[Object.keys(desc).find((key) => key.endsWith("DataType"))] ?? desc.OutputTensor.DataType;
      const member = camel(type).replace("Uint", "UInt");
      return `{.${member} = ${type.startsWith("FLOAT") ? floatText(value) : value}}`;
    }
    case "FLOAT":
      return floatText(value);
    case "FLOAT_ARRAY":
    case "UINT_ARRAY":
    case "INT_ARRAY":
      lines.push(`${field.type.replace("_ARRAY", "")} ${name}[] = {${value.map(field.type === "FLOAT_ARRAY" ? floatText : String).join(", ")}};`);
      return name;
    default:
      if (typeof value === "boolean") return value ? "TRUE" : "FALSE";
      return schema.properties[field.name]?.enum?.find((each) => String(each).startsWith("DML_") && each.endsWith(`_${value}`)) ?? String(value);
  }
}

function tensorLines({ DataType, Flags, Sizes, Strides, TotalTensorSizeInBytes, GuaranteedBaseOffsetAlignment }, name, lines) {
  lines.push(`UINT ${name}Sizes[] = {${Sizes.join(", ")}};`);
  if (Strides) lines.push(`UINT ${name}Strides[] = {${Strides.join(", ")}};`);
  const values = [`DML_TENSOR_DATA_TYPE_${DataType}`, `DML_TENSOR_FLAG_${Flags ?? "NONE"}`, Sizes.length, `${name}Sizes`,
    Strides ? `${name}Strides` : "NULL", TotalTensorSizeInBytes, GuaranteedBaseOffsetAlignment ?? 0];
  lines.push(`DML_BUFFER_TENSOR_DESC ${name}Buffer = {${values.join(", ")}};`);
  lines.push(`DML_TENSOR_DESC ${name} = {DML_TENSOR_TYPE_BUFFER, &${name}Buffer};`, "");
}

function floatText(value) {
  const number = Number(value);
  if (!Number.isFinite(number)) return Number.isNaN(number) ? "NAN" : number > 0 ? "INFINITY" : "-INFINITY";
  return /[.e]/.test(String(number)) ? `${number}f` : `${number}.0f`;
}

/** Names of the files that the call reads and writes. */
export const fileNames = (call, inputs) => ({
  input: inputs ? `input.${fileSuffix(call.contentType)}` : null,
  output: `output.${fileSuffix(call.accept)}`,
});

export const typeNames = Object.keys(DATA_TYPES);
