/** Steps: an operator with what was filled in, alone or in a chain whose steps each read the result of the one before. */

import { validate } from "./api.js";
import { documentOf, outputOf, suggest } from "./operators.js";
import { DATA_TYPES, byProperty, elementCount, tensorOf } from "./tensor.js";

/** The name of the tensor that a chain is sent, and of the one that it answers with. */
export const INPUT = "input", OUTPUT = "output";
const MOST_ELEMENTS = 16384; // of a constant, which travels as JSON

/**
 * A step with every field filled in for the tensor that it reads.
 *
 * @param {object} operator
 * @param {{type: string, shape: number[]}} own the tensor that it reads
 */
export function newStep(operator, own) {
  const texts = Object.fromEntries(operator.fields.map((field) => [field.key, suggest(field, operator, own.shape)]));
  const extra = {};
  for (const input of operator.inputs.slice(1)) extra[input.name] = firstExtra(input, own);
  const [first] = operator.inputs;
  if (first?.array) extra[first.name] = { ...firstExtra(first, own), from: "same" };
  return { operator, texts, extra, outputSizes: "", outputType: "", name: "", reads: "" };
}

/** The same again, to be changed by itself. */
export const copyOf = (step) => ({ ...step, texts: { ...step.texts }, reads: "",
  extra: Object.fromEntries(Object.entries(step.extra).map(([name, each]) => [name, { ...each }])) });

function firstExtra(input, { type, shape }) {
  const known = input.types.map((name) => byProperty("directml", name) ?? byProperty("onnx", name)).filter(Boolean);
  if (input.optional) return { from: "none", type: known[0] ?? "float32", shape: "1", values: "1" };
  const ones = shape.map(() => 1).join(", "), channels = shape.at(-3) ?? 1;
  if (["FilterTensor", "W"].includes(input.field) && shape.length === 4) { // the mean of 3 x 3 elements
    return { from: "typed", type: known.includes(type) ? type : known[0], shape: `1, ${channels}, 3, 3`, values: (1 / (9 * channels)).toPrecision(4) };
  }
  const fits = known.includes(type) || known.length === 0;
  return { from: fits ? "same" : "typed", type: fits ? type : known.at(-1), shape: ones, values: "0" };
}

/** The tensors that a step reads, by name; `own` is the first, and every other that is said to be the same. */
export function tensorsOf({ operator, extra }, own) {
  const tensors = {};
  const listed = (text) => text.split(/[\s,]+/).filter(Boolean).map(Number);
  const further = ({ from, type, shape, values, tensor }, field) => {
    if (from === "file" && !tensor) throw new Error(`${field}: choose an npy file.`);
    return from === "same" ? own : from === "typed" ? tensorOf(type, listed(shape), listed(values)) : from === "file" ? tensor : null;
  };
  for (const [index, input] of operator.inputs.entries()) {
    const more = extra[input.name] && (index > 0 || input.array) ? further(extra[input.name], input.field) : null;
    const found = index === 0 ? own : more;
    if (found) tensors[input.array ? `${input.name}_0` : input.name] = found;
    if (input.array && index === 0 && more) tensors[`${input.name}_1`] = more;
  }
  return tensors;
}

// ---- chains ---------------------------------------------------------------------------------------------------------

/** What a person calls a step: its place in the chain, and its operator. */
export const titleOf = (step, index) => `Step ${index + 1}, ${step.operator.name}`;

/** A name that is not taken: the wish, or the wish with a number. */
export function freeName(wish, taken) {
  let name = wish;
  for (let number = 2; taken.has(name); number++) name = `${wish}_${number}`;
  return name;
}

/** Gives the step a name of its own among these. */
export const named = (step, steps) =>
  Object.assign(step, { name: freeName(step.operator.name.toLowerCase(), new Set([INPUT, ...steps.map(({ name }) => name)])) });

const verdicts = new Map(); // by level and document: a change asks anew only from its step on
const MOST_VERDICTS = 200;

async function validated(document_, level, signal) {
  const key = JSON.stringify([level, document_]);
  if (verdicts.size >= MOST_VERDICTS) verdicts.clear();
  if (!verdicts.has(key)) verdicts.set(key, await validate(document_, level, signal));
  return verdicts.get(key);
}

/**
 * What each step reads and makes, step by step, up to the first that is wrong.
 *
 * @returns {Promise<{own: object, tensors: object, output: object | null, verdict: object | null, error: string}[]>}
 *   `error` is what cannot be read in a field; the server's violations are in the verdict
 */
export async function walk(source, steps, level, signal) {
  const walked = [];
  let own = { type: source.type, shape: source.shape };
  for (const step of steps) {
    const found = { own, tensors: {}, output: null, verdict: null, error: "" };
    walked.push(found);
    try {
      found.tensors = tensorsOf(step, own);
      found.output = outputOf(step.outputSizes, step.outputType, found.tensors);
      const document_ = documentOf(step.operator, step.texts, found.tensors, found.output);
      for (const [name, each] of constantsOf(step, found)) constantOf(each, name);
      found.verdict = await validated(document_, step.operator.dialect === "directml" ? level : "", signal);
    } catch (error) {
      if (error.name === "AbortError" || error.status !== undefined) throw error;
      found.error = error.message;
    }
    if (!found.verdict?.valid) break;
    const next = steps[walked.length], outputs = found.verdict.outputs;
    const read = outputs.find(({ name }) => name === next?.reads) ?? outputs[0];
    own = { type: read.dtype, shape: read.shape };
  }
  return walked;
}

const constantsOf = (step, { own, tensors }) => Object.entries(tensors).filter(([, tensor]) => tensor !== own);

/** A tensor as JSON, as a graph holds it. @throws {Error} what JSON has no words for, or too much of it */
function constantOf({ type, shape, values }, name) {
  const count = elementCount(shape);
  if (count > MOST_ELEMENTS)
    throw new Error(`${name}: ${count.toLocaleString("en")} elements. A chain's other inputs travel as JSON: at most ${MOST_ELEMENTS.toLocaleString("en")} here.`);
  const data = Array.from(values, type === "bool" ? Boolean : Number);
  if (!data.every(Number.isFinite) && type !== "bool") throw new Error(`${name}: a chain's other inputs travel as JSON, which has no NaN and no infinity.`);
  return { dtype: DATA_TYPES[type].frame, shape, data };
}

/** The element type as documents name it. */
const typeName = (type) => DATA_TYPES[type]?.directml ?? type;

/** Names for sizes, so that a chain takes tensors of other sizes too. */
const sizeNames = (rank) => (rank === 4 ? ["n", "c", "h", "w"] : Array.from({ length: rank }, (_, axis) => `d${axis}`));

/**
 * The graph of a chain (docs/graphs.md). The last step's outputs are its outputs.
 *
 * @param {object} source the tensor that is sent
 * @param {object[]} steps at least one
 * @param {object[]} walked what `walk` found of them
 * @param {boolean} exact whether sizes of the input are numbers instead of names
 */
export function graphOf(source, steps, walked, exact = false) {
  const constants = {}, taken = new Set([INPUT, ...steps.map(({ name }) => name)]);
  let before = INPUT;
  const nodes = steps.map((step, index) => {
    const { own, tensors, output } = walked[index];
    const references = {};
    for (const name of Object.keys(tensors)) references[name] = before;
    for (const [name, tensor] of constantsOf(step, { own, tensors })) {
      references[name] = freeName(`${step.name}_${name}`, taken);
      taken.add(references[name]);
      constants[references[name]] = constantOf(tensor, name);
    }
    before = referenceOf(step, walked[index], steps[index + 1]?.reads);
    return nodeOf(step, references, output);
  });
  const last = steps.at(-1), made = walked[steps.length - 1]?.verdict?.outputs ?? [];
  const outputs = made.length > 1 ? Object.fromEntries(made.map(({ name }) => [name, `${last.name}.${name}`])) : { [OUTPUT]: last.name };
  return {
    inputs: { [INPUT]: { data_type: typeName(source.type), sizes: exact ? source.shape : sizeNames(source.shape.length) } },
    ...(Object.keys(constants).length && { constants }), nodes, outputs,
  };
}

function referenceOf(step, found, reads) {
  const outputs = found?.verdict?.outputs ?? [];
  return reads ? `${step.name}.${reads}` : outputs.length > 1 ? `${step.name}.${outputs[0].name}` : step.name;
}

function nodeOf({ operator, texts, name }, references, output) {
  const { inputs: values = {}, desc, attributes = {}, ...said } = documentOf(operator, texts, {}, output), inputs = {};
  for (const input of operator.inputs) {
    const read = input.array ? [0, 1].map((number) => references[`${input.name}_${number}`]).filter(Boolean) : references[input.name];
    if (read?.length) inputs[input.field] = read;
  }
  return { name, ...said, inputs: { ...inputs, ...values }, ...(desc && { desc }), ...(Object.keys(attributes).length && { attributes }) };
}

/** The step that a violation is about, counted from 0; -1 where it is about none. */
export const stepOf = ({ path }) => Number(/^\$(?:\.graph)?\.nodes\[(\d+)\]/.exec(path)?.[1] ?? -1);

/** The path within a step. */
export const pathInStep = ({ path }) => path.replace(/^\$(?:\.graph)?\.nodes\[\d+\]/, "$");
