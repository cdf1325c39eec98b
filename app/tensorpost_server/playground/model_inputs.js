/** What an input of a model is filled with: the picture or the array of the page, a file, or one number. */

import { DATA_TYPES, elementCount, shapeText, tensor, tensorOf } from "./tensor.js";

const FLOATS = ["float32", "float16", "float64"];
const LARGEST_FREE_SIDE = 512; // of a picture whose size the model leaves open
const FREE_STEP = 32; // many networks halve a picture five times, and join what they halved with what was before

/** How the bytes of a picture become numbers: a factor and a summand for each channel. */
const MEAN = [0.485, 0.456, 0.406], DEVIATION = [0.229, 0.224, 0.225];
export const SCALES = {
  unit: { text: "0 to 1", of: (byte) => byte / 255 },
  signed: { text: "−1 to 1", of: (byte) => byte / 127.5 - 1 },
  byte: { text: "0 to 255", of: (byte) => byte },
  imagenet: { text: "ImageNet's mean and deviation", of: (byte, channel) => (byte / 255 - MEAN[channel % 3]) / DEVIATION[channel % 3] },
};

/** `n × 3 × 224 × 224`, or what is known of it. */
export const sizesText = ({ sizes }) => (sizes === null ? "any sizes" : shapeText(sizes.map((size) => size ?? "?")));

/**
 * How an input holds a picture; null if it does not.
 *
 * @param {{data_type: string | null, sizes: (number | string | null)[] | null}} input
 * @returns {{first: boolean, channels: number, height: number | null, width: number | null} | null}
 */
export function pictureLayout({ data_type: type, sizes }) {
  if (sizes === null || sizes.length < 3 || sizes.length > 4 || !(FLOATS.includes(type ?? "float32") || type === "uint8")) return null;
  const known = sizes.map((size) => (Number.isInteger(size) ? size : null));
  if (known.length === 4 && known[0] !== null && known[0] !== 1) return null;
  const [a, b, c] = known.slice(-3), isChannels = (size) => size === 1 || size === 3;
  if (isChannels(a) || !isChannels(c)) return isChannels(a) || a === null ? { first: true, channels: a ?? 3, height: b, width: c } : null;
  return { first: false, channels: c, height: a, width: b };
}

/** Rows and columns of a picture for an input: the model's, or where it leaves them open those of the text, or the picture's. */
export function sidesFor({ height, width }, pixels, text) {
  const given = text.split(/[,x×]/).map(Number);
  if (text.trim() && !(given.length === 2 && given.every((side) => Number.isInteger(side) && side > 0)))
    throw new Error("Rows and columns of the picture must be two whole numbers, as in 320, 480.");
  const reduced = Math.min(1, LARGEST_FREE_SIDE / Math.max(pixels.width, pixels.height));
  const free = (side) => Math.max(FREE_STEP, FREE_STEP * Math.round((side * reduced) / FREE_STEP));
  const [rows, columns] = text.trim() ? given : [free(pixels.height), free(pixels.width)];
  return [height ?? rows, width ?? columns];
}

/**
 * The picture as the input wants it: resampled by the browser, grey where there is one channel.
 *
 * @param {string} sides see `sidesFor`
 */
export function pictureFor(input, pixels, scale, sides) {
  const layout = pictureLayout(input), { first, channels } = layout, type = input.data_type ?? "float32";
  const [height, width] = sidesFor(layout, pixels, sides);
  const { data } = resampled(pixels, width, height), count = width * height, numbers = new Float64Array(channels * count);
  const convert = type === "uint8" ? SCALES.byte.of : SCALES[scale].of;
  for (let pixel = 0; pixel < count; pixel++)
    for (let channel = 0; channel < channels; channel++) {
      const [red, green, blue] = data.subarray(4 * pixel);
      const byte = channels === 1 ? 0.299 * red + 0.587 * green + 0.114 * blue : [red, green, blue][channel];
      numbers[first ? channel * count + pixel : pixel * channels + channel] = convert(byte, channel);
    }
  const shape = first ? [channels, height, width] : [height, width, channels];
  return numbersTensor(type, input.sizes.length === 4 ? [1, ...shape] : shape, numbers);
}

function resampled(pixels, width, height) {
  if (pixels.width === width && pixels.height === height) return pixels;
  const whole = new OffscreenCanvas(pixels.width, pixels.height);
  whole.getContext("2d").putImageData(pixels, 0, 0);
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(whole, 0, 0, width, height);
  return context.getImageData(0, 0, width, height);
}

function numbersTensor(type, shape, numbers) {
  if (type === "float32") return tensor(type, shape, new Uint8Array(Float32Array.from(numbers).buffer));
  if (type === "uint8") return tensor(type, shape, Uint8Array.from(numbers, Math.round));
  return tensorOf(type, shape, Array.from(numbers));
}

/** Why a tensor does not fit an input; empty if it does. */
export function misfit(input, { type, shape }) {
  const { data_type: wanted, sizes } = input;
  if (wanted !== null && wanted !== type) return `it is ${type}, and the model takes ${wanted}`;
  const fits = sizes === null || (sizes.length === shape.length && sizes.every((size, axis) => !Number.isInteger(size) || size === shape[axis]));
  return fits ? "" : `it has the shape ${shapeText(shape)}, and the model takes ${sizesText(input)}`;
}

/** A tensor of one number; names of sizes are 1 unless the text has other sizes. */
export function filled(input, number, sizesGiven) {
  const type = input.data_type ?? "float32";
  if (!DATA_TYPES[type]) throw new Error(`The page has no tensors of ${type}.`);
  const texts = sizesGiven.trim() ? sizesGiven.split(",") : (input.sizes ?? [1]).map((size) => (Number.isInteger(size) ? size : 1));
  const shape = texts.map(Number);
  if (!shape.every((size) => Number.isInteger(size) && size >= 0)) throw new Error(`The sizes of ${input.name} must be whole numbers, as in 1, 3, 224, 224.`);
  const reason = misfit(input, { type, shape });
  if (reason) throw new Error(`${input.name}: ${reason}.`);
  return tensorOf(type, shape, elementCount(shape) ? [number] : []);
}
