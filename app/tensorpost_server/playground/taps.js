/**
 * Where each output of an axis reads. Nothing is computed here: the server is sent rows that are 1 at one element and
 * 0 elsewhere, by the same operator along the same axis, so that what comes back are the weights of that element.
 */

import { run } from "./api.js";
import { readNpy, writeNpy } from "./npy.js";
import { formatNumber } from "./viewer.js";
import { tensorOf } from "./tensor.js";

/** Inputs that are drawn; fewer on a phone, where a drawing of more would be cut off. */
const mostInputs = () => (matchMedia("(max-width: 560px)").matches ? 5 : 8);
const MOST_OUTPUTS = 24;
const MOST_LENGTH = 4096;

/**
 * @param {object} probe {length, path(axis) of the call, dimensions}; length of the axis
 * @returns {Promise<number[][]>} weights by output and input, of the first outputs and inputs
 */
export async function measureTaps({ length, axis, path }, signal) {
  const inputs = Math.min(mostInputs(), length);
  const rows = Array(inputs * length).fill(0);
  for (let row = 0; row < inputs; row++) rows[row * length + row] = 1;
  const shape = axis === -1 ? [inputs, 1, 1, length] : [inputs, 1, length, 1];
  const body = writeNpy(tensorOf("float32", shape, rows));
  const answer = readNpy((await run({ path, contentType: "application/x-npy", accept: "application/x-npy", body }, signal)).bytes);
  const outputs = answer.shape.at(axis);
  const weights = (output) => Array.from({ length: inputs }, (_, row) => answer.values[row * outputs + output]);
  const found = Array.from({ length: Math.min(outputs, MOST_OUTPUTS) }, (_, output) => weights(output));
  // An output that also reads elements after those drawn would be shown with some of its weights only.
  const whole = (each) => inputs === length || Math.abs(each.reduce((sum, weight) => sum + weight, 0) - 1) < 1e-3;
  const end = found.findIndex((each) => !whole(each));
  return { weights: end < 0 ? found : found.slice(0, Math.max(1, end)), inputs, length, outputs };
}

export const tooLong = (length) => length > MOST_LENGTH;

const CELL = 46, GAP = 92, MARGIN = 30;

/**
 * An SVG element with the inputs above, the outputs below, and a line for every weight that is not 0.
 *
 * @param {boolean} tiles whether outputs are as large as inputs; else all outputs together are as wide as all inputs
 */
export function drawTaps({ weights, inputs, length, outputs }, tiles) {
  const step = tiles ? CELL : (CELL * length) / outputs;
  const visible = Math.min(weights.length, tiles ? 2 * inputs : Math.ceil((inputs * CELL) / step + 1e-9));
  const width = Math.max(inputs * CELL, visible * step, 4 * CELL) + 2 * MARGIN + 20;
  const top = 24 + CELL / 2, low = top + GAP;
  const svg = make("svg", { viewBox: `0 0 ${width} ${low + CELL / 2 + 30}`, role: "img", class: "taps" });
  svg.style.maxWidth = `${1.3 * width}px`;
  svg.append(make("title", {}, `The first ${visible} outputs and the inputs that they read`));
  svg.append(make("text", { x: MARGIN, y: 12, class: "axis" }, "input"), make("text", { x: MARGIN, y: low + CELL / 2 + 24, class: "axis" }, "output"));
  for (let input = 0; input < inputs; input++) cell(svg, MARGIN + (input + 0.5) * CELL, top, CELL, input, "source");
  weights.slice(0, visible).forEach((each, output) => {
    const x = MARGIN + (output + 0.5) * step;
    let sum = 0, position = 0;
    each.forEach((weight, input) => {
      if (Math.abs(weight) < 1e-4) return;
      const from = MARGIN + (input + 0.5) * CELL;
      sum += weight;
      position += weight * from;
      const line = { x1: from, y1: top + CELL / 4, x2: x, y2: low - CELL / 4, class: weight < 0 ? "negative" : "positive" };
      line["stroke-width"] = 0.6 + 3 * Math.min(1, Math.abs(weight));
      line["stroke-opacity"] = 0.25 + 0.75 * Math.min(1, Math.abs(weight));
      svg.append(make("line", line));
    });
    cell(svg, x, low, step, output, "target");
    if (sum > 1e-3) svg.append(make("circle", { cx: position / sum, cy: top + CELL / 4, r: 3.5, class: "centre" }));
  });
  if (inputs < length) svg.append(make("text", { x: MARGIN + inputs * CELL + 6, y: top + 5, class: "axis" }, "…"));
  return svg;
}

function cell(svg, x, y, width, index, kind) {
  const size = Math.min(width, CELL) - 3;
  svg.append(make("rect", { x: x - size / 2, y: y - CELL / 4, width: Math.max(size, 1), height: CELL / 2, rx: 4, class: kind }));
  if (width >= 6 + 8 * String(index).length) svg.append(make("text", { x, y: y + 4.5, class: `label ${kind}` }, String(index)));
}

export function make(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** The same numbers as rows of a table: output, and the inputs with their weights. */
export const tapRows = ({ weights }) =>
  weights.map((each, output) => [
    String(output),
    each.flatMap((weight, input) => (Math.abs(weight) < 1e-4 ? [] : [`${input} × ${formatNumber(weight)}`])).join(" + ") || "nothing",
  ]);
