/** Tensors in the browser: element types, their bytes, and the values as numbers. */

const F16 = (bytes) => Float32Array.from(new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2), float16);
const view = (Array_) => (bytes) => new Array_(bytes.buffer, bytes.byteOffset, bytes.length / Array_.BYTES_PER_ELEMENT);

/** By NumPy's name: bytes per element, npy's `descr`, the frame's `dtype`, DirectML's and ONNX's names, and a reader. */
export const DATA_TYPES = {
  float32: { bytes: 4, npy: "<f4", frame: "F32", directml: "FLOAT32", onnx: "float", read: view(Float32Array) },
  float16: { bytes: 2, npy: "<f2", frame: "F16", directml: "FLOAT16", onnx: "float16", read: F16 },
  uint8: { bytes: 1, npy: "|u1", frame: "U8", directml: "UINT8", onnx: "uint8", read: view(Uint8Array) },
  float64: { bytes: 8, npy: "<f8", frame: "F64", directml: "FLOAT64", onnx: "double", read: view(Float64Array) },
  int8: { bytes: 1, npy: "|i1", frame: "I8", directml: "INT8", onnx: "int8", read: view(Int8Array) },
  int16: { bytes: 2, npy: "<i2", frame: "I16", directml: "INT16", onnx: "int16", read: view(Int16Array) },
  uint16: { bytes: 2, npy: "<u2", frame: "U16", directml: "UINT16", onnx: "uint16", read: view(Uint16Array) },
  int32: { bytes: 4, npy: "<i4", frame: "I32", directml: "INT32", onnx: "int32", read: view(Int32Array) },
  uint32: { bytes: 4, npy: "<u4", frame: "U32", directml: "UINT32", onnx: "uint32", read: view(Uint32Array) },
  int64: { bytes: 8, npy: "<i8", frame: "I64", directml: "INT64", onnx: "int64", read: view(BigInt64Array) },
  uint64: { bytes: 8, npy: "<u8", frame: "U64", directml: "UINT64", onnx: "uint64", read: view(BigUint64Array) },
  bool: { bytes: 1, npy: "|b1", frame: "BOOL", directml: null, onnx: "bool", read: view(Uint8Array) },
};

export const byProperty = (property, name) =>
  Object.keys(DATA_TYPES).find((type) => DATA_TYPES[type][property] === name);

export const elementCount = (shape) => shape.reduce((count, size) => count * size, 1);

/**
 * A tensor: packed, row-major, little-endian. The bytes are copied where they do not lie at a multiple of their size.
 *
 * @param {string} type NumPy's name of the element type
 * @param {number[]} shape
 * @param {Uint8Array} bytes
 */
export function tensor(type, shape, bytes) {
  const expected = elementCount(shape) * DATA_TYPES[type].bytes;
  if (bytes.length !== expected)
    throw new Error(`A ${type} tensor of shape ${shape.join(" × ")} has ${expected} bytes, but there are ${bytes.length}.`);
  const aligned = bytes.byteOffset % 8 === 0 ? bytes : bytes.slice();
  let values = null;
  return { type, shape, bytes: aligned, get values() { return (values ??= DATA_TYPES[type].read(aligned)); } };
}

/** A tensor of numbers; one number alone fills the shape. */
export function tensorOf(type, shape, numbers) {
  const count = elementCount(shape);
  const all = numbers.length === 1 ? Array(count).fill(numbers[0]) : numbers;
  if (all.length !== count)
    throw new Error(`A tensor of shape ${shape.join(" × ")} has ${count} values, but ${all.length} are given.`);
  const bytes = new Uint8Array(count * DATA_TYPES[type].bytes);
  if (type === "float16") new Uint16Array(bytes.buffer).set(all.map(toFloat16));
  else if (type.endsWith("int64")) DATA_TYPES[type].read(bytes).set(all.map((number) => BigInt(Math.trunc(number))));
  else DATA_TYPES[type].read(bytes).set(all);
  return tensor(type, shape, bytes);
}

function float16(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

/** The nearest float16, halves to even (IEEE 754-2019, section 4.3.1). */
export function toFloat16(number) {
  const sign = number < 0 || Object.is(number, -0) ? 0x8000 : 0, size = Math.abs(number);
  if (Number.isNaN(number)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  const exponent = Math.max(-14, Math.floor(Math.log2(size || 2 ** -24)));
  const scaled = size / 2 ** (exponent - 10), below = Math.floor(scaled), rest = scaled - below;
  const rounded = below + (rest > 0.5 || (rest === 0.5 && below % 2) ? 1 : 0);
  return sign | (exponent === -14 ? rounded : ((exponent + 14) << 10) + rounded);
}

export const shapeText = (shape) => (shape.length ? shape.join(" × ") : "scalar");

export function bytesText(count) {
  const units = ["bytes", "KiB", "MiB", "GiB"];
  const unit = Math.min(3, Math.floor(Math.log2(Math.max(count, 1)) / 10));
  return `${unit ? (count / 1024 ** unit).toLocaleString("en", { maximumSignificantDigits: 3 }) : count} ${units[unit]}`;
}
