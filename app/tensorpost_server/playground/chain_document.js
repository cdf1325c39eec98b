/** Opens a chain: a graph's document (docs/graphs.md) whose nodes stand in a row, as steps with their fields filled in. */

import { idOf, loadOperator } from "./operators.js";
import { INPUT, freeName, newStep } from "./steps.js";
import { byProperty } from "./tensor.js";

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const listOf = (value) => (Array.isArray(value) ? value : [value]);

/**
 * The steps of a document, and the input that it declares.
 *
 * @param {string} text
 * @param {{type: string, shape: number[]}} tensor what fields that the document leaves out are filled in for
 * @returns {Promise<{steps: object[], declared: {data_type?: string, sizes?: (number | string)[]}}>}
 * @throws {Error} what is no graph, or no chain, or a field that the page does not have
 */
export async function readChain(text, tensor) {
  const document_ = parsed(text);
  for (const member of ["inputs", "outputs"]) if (!isObject(document_[member])) throw new Error(`This is no graph: ${member} must be an object. See docs/graphs.md.`);
  const { inputs, constants = {}, nodes, outputs } = document_;
  if (!Array.isArray(nodes) || !nodes.length) throw new Error("This is no graph: nodes must be a list of at least one node. See docs/graphs.md.");
  const names = Object.keys(inputs);
  if (names.length !== 1) throw new Error(`A chain has one input; this graph has ${names.length}: ${names.join(", ")}. Make the others constants.`);
  for (const [index, node] of nodes.entries()) {
    if (typeof node?.name !== "string" || nodes.slice(0, index).some((other) => other.name === node.name)) throw new Error(`nodes[${index}] needs a name of its own.`);
  }
  const chain = await inOrder(nodes, names[0], constants);
  const last = chain.at(-1).node.name;
  const other = Object.values(outputs).find((each) => String(each).split(".")[0] !== last);
  if (other !== undefined) throw new Error(`A chain answers with its last step, “${last}”; this graph's outputs have “${other}” too.`);
  const taken = new Set([INPUT]), steps = [];
  for (const { node, operator, reads, before } of chain) {
    const step = stepOfNode(node, operator, reads, before, constants, tensor);
    step.name = freeName(node.name, taken);
    taken.add(step.name);
    steps.push(step);
  }
  return { steps, declared: isObject(inputs[names[0]]) ? inputs[names[0]] : {} };
}

function parsed(text) {
  let document_;
  try {
    document_ = JSON.parse(text);
  } catch (error) {
    throw new Error(`This file is not JSON: ${error.message}`);
  }
  if (!isObject(document_)) throw new Error("This is no graph: it must be an object with inputs, nodes and outputs. See docs/graphs.md.");
  return document_.graph && document_.tensors ? document_.graph : document_; // the body of a request has both
}

/** The nodes, each after the one that it reads. */
async function inOrder(nodes, input, constants) {
  const waiting = [];
  for (const node of nodes) {
    const id = idOf(node);
    if (!id) throw new Error(`“${node.name}”: there is no operator ${node.type ?? node.op_type ?? ""} on this server.`);
    const operator = await loadOperator(id);
    if (node.opset !== undefined && node.opset < operator.opset)
      throw new Error(`“${node.name}”: the page has ${operator.name} from opset ${operator.opset} on, and the file says ${node.opset}.`);
    if (node.outputs !== undefined) throw new Error(`“${node.name}”: the page has no field for “outputs” of a node.`);
    waiting.push({ node, operator, reads: namedInputs(node, operator) });
  }
  const chain = [];
  for (let before = input; waiting.length; before = chain.at(-1).node.name) {
    const readers = waiting.filter(({ reads }) => references(reads).some((name) => name.split(".")[0] === before));
    if (readers.length !== 1) throw new Error(`The page opens chains, where each result is read by the next step alone; ${readers.length || "no"} nodes read “${before}”.`);
    const [found] = readers;
    const other = references(found.reads).find((name) => name.split(".")[0] !== before && !(name in constants));
    if (other !== undefined) throw new Error(`“${found.node.name}” reads “${other}”; in a chain a step reads the one before, and constants.`);
    waiting.splice(waiting.indexOf(found), 1);
    chain.push({ ...found, before });
  }
  return chain;
}

/** What a node's inputs read, by the operator's names: lists of names of tensors, or numbers. */
function namedInputs({ name, inputs = {} }, operator) {
  if (!isObject(inputs)) {
    const listed = listOf(inputs), first = operator.inputs[0];
    if (first?.array && operator.inputOrder.length === 1) return { [first.field]: listed };
    return Object.fromEntries(listed.map((each, index) => [operator.inputOrder[index] ?? `input ${index + 1}`, each]));
  }
  const found = {};
  for (const [key, value] of Object.entries(inputs)) {
    const input = operator.inputs.find((each) => [each.field, each.name].includes(key) || (each.array && key.replace(/_\d+$/, "") === each.name));
    const known = input?.field ?? operator.fields.find((field) => field.value && field.key === key)?.key;
    if (!known) throw new Error(`“${name}”: ${operator.name} has no input ${key}.`);
    found[known] = input?.array ? [...(found[known] ?? []), ...listOf(value)] : value;
  }
  return found;
}

const references = (reads) => Object.values(reads).flat().filter((each) => typeof each === "string" && each);

function stepOfNode(node, operator, reads, before, constants, tensor) {
  const step = newStep(operator, tensor);
  if (node.opset !== undefined) step.operator = { ...operator, opset: node.opset };
  for (const field of operator.fields) step.texts[field.key] = "";
  for (const [key, value] of Object.entries(node.desc ?? node.attributes ?? {})) {
    const field = operator.fields.find((each) => each.path === key && !each.value);
    if (field) step.texts[field.key] = textOf(field, value, node.name);
    else if (key === "OutputTensor") Object.assign(step, { outputSizes: (value.Sizes ?? []).join(", "), outputType: value.DataType ?? "" });
    else if (!key.endsWith("Count")) throw new Error(`“${node.name}”: the page has no field ${key}.`); // counts follow from lists
  }
  for (const [index, input] of operator.inputs.entries()) {
    const [own, more, ...rest] = index === 0 ? listOf(reads[input.field] ?? "") : ["", ...listOf(reads[input.field] ?? "")];
    if (index === 0 && String(own).split(".")[0] !== before) throw new Error(`“${node.name}”: its first input must be the step before, “${before}”.`);
    if (index === 0) step.reads = own.split(".")[1] ?? "";
    if (rest.length) throw new Error(`“${node.name}”: the page has fields for two tensors of ${input.field}.`);
    if (index > 0 || input.array) step.extra[input.name] = extraOf(more, own || before, constants, node.name);
  }
  for (const field of operator.fields.filter(({ value }) => value)) {
    const read = reads[field.key], value = typeof read === "string" && read ? constantOf(read, constants, node.name).data : read;
    if (value !== undefined && value !== "") step.texts[field.key] = listOf(value).flat(Infinity).join(", ");
  }
  return step;
}

function extraOf(name, before, constants, node) {
  if (!name) return { from: "none", type: "float32", shape: "1", values: "1" };
  if (!(name in constants)) {
    if (name === before || name === before.split(".")[0]) return { from: "same", type: "float32", shape: "1", values: "1" };
    throw new Error(`“${node}” reads “${name}” beside “${before}”; in a chain all but constants is one tensor.`);
  }
  const { type, shape, data } = constantOf(name, constants, node);
  return { from: "typed", type, shape: shape.join(", "), values: data.join(", ") };
}

function constantOf(name, constants, node) {
  const { dtype, shape, data } = constants[name] ?? {}, type = byProperty("frame", dtype);
  if (!type || !Array.isArray(shape) || data === undefined) throw new Error(`“${node}”: “${name}” must be a constant with dtype, shape and data.`);
  return { type, shape, data: listOf(data).flat(Infinity).map(Number) };
}

/** A value of the document as its field shows it. */
function textOf(field, value, node) {
  if (value === null) return "";
  if (field.kind === "choice") {
    const found = field.choices.find((choice) => choice === String(value) || String(value).endsWith(`_${choice}`));
    if (!found) throw new Error(`“${node}”: ${field.path} is ${JSON.stringify(value)}; the page knows ${field.choices.join(", ")}.`);
    return found;
  }
  if (field.kind === "numbers") return listOf(value).join(", ");
  return typeof value === "object" || (field.kind === "json" && typeof value === "string") ? JSON.stringify(value) : String(value);
}
