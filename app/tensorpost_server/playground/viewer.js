/** Two pictures of tensors with one zoom: pixels with their numbers when they are large, values under the pointer. */

import { elementCount, shapeText } from "./tensor.js";

const MOST_PIXELS = 1 << 25;
const NUMBERS_FROM = 34; // screen pixels per element
const MOST_ZOOM = 512;
const SMALLEST_PICTURE = 8; // rows and columns from which 3 or 4 elements in the last dimension are taken for colours

/** How the dimensions of a shape are shown: rows, columns, channels, and how many such planes there are. */
export function layoutOf(shape) {
  const [height = 1, width = 1] = shape.length > 1 ? shape.slice(-2) : [1, ...shape];
  const before = shape.length > 2 ? shape.at(-3) : 1;
  if (before >= SMALLEST_PICTURE && height >= SMALLEST_PICTURE && [3, 4].includes(width)) {
    return { height: before, width: height, channels: width, last: true, planes: elementCount(shape.slice(0, -3)) };
  }
  const channels = [3, 4].includes(before) ? before : 1;
  return { height, width, channels, last: false, planes: elementCount(shape.slice(0, -2)) / channels };
}

/** Position in the values of an element of a plane. */
const indexOf = ({ height, width, channels, last }, plane, channel, y, x) =>
  last
    ? ((plane * height + y) * width + x) * channels + channel
    : ((plane * channels + channel) * height + y) * width + x;

/** Lowest and highest value that are shown as black and white. */
export function rangeOf({ type, values }, choice) {
  if (choice !== "auto") return choice === "byte" ? [0, 255] : [0, 1];
  if (type === "uint8") return [0, 255];
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    const number = Number(value);
    if (number < low && number !== -Infinity) low = number;
    if (number > high && number !== Infinity) high = number;
  }
  if (low >= 0 && high <= 1 && type.startsWith("float")) return [0, 1];
  return high > low ? [low, high] : [Math.min(low, 0), Math.max(high, low + 1)];
}

export function formatNumber(value, digits = 4) {
  const number = Number(value);
  if (Number.isInteger(number)) return String(value);
  return Number.isFinite(number) ? String(Number(number.toPrecision(digits))) : String(number);
}

const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** What both viewers share: magnification relative to the whole picture, and the fraction that is in the middle. */
export class View {
  zoom = 1;
  x = 0.5;
  y = 0.5;
  #viewers = [];

  add(viewer) {
    this.#viewers.push(viewer);
  }

  set({ zoom = this.zoom, x = this.x, y = this.y }) {
    this.zoom = Math.min(MOST_ZOOM, Math.max(1, zoom));
    const margin = 0.5 / this.zoom;
    this.x = Math.min(1 - margin, Math.max(margin, x));
    this.y = Math.min(1 - margin, Math.max(margin, y));
    for (const viewer of this.#viewers) viewer.draw();
  }
}

export class Viewer {
  #cell = null;
  #picture = null;
  #pointers = new Map();

  /**
   * @param {HTMLElement} root holds a canvas and an element .readout
   * @param {View} view
   * @param {string} name
   * @param {(text: string) => void} announce tells a screen reader what the keyboard moved to
   */
  constructor(root, view, name, announce) {
    this.canvas = root.querySelector("canvas");
    this.readout = root.querySelector(".readout");
    this.view = view;
    this.name = name;
    this.announce = announce;
    view.add(this);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.#listen();
  }

  show(tensor, { range = "auto", plane = 0 } = {}) {
    this.tensor = tensor;
    this.#picture = null;
    if (!tensor) {
      this.canvas.setAttribute("aria-label", `${this.name}: nothing yet`);
      return this.draw();
    }
    this.layout = layoutOf(tensor.shape);
    this.plane = Math.min(plane, Math.max(0, this.layout.planes - 1));
    const { height, width } = this.layout;
    if (this.#cell && (this.#cell.y >= height || this.#cell.x >= width)) this.#cell = null;
    if (height * width > 0 && height * width <= MOST_PIXELS) this.#picture = this.#render(rangeOf(tensor, range));
    this.canvas.setAttribute("aria-label", `${this.name}: ${tensor.type}, ${shapeText(tensor.shape)}`);
    this.#tell();
    this.draw();
  }

  #render([low, high]) {
    const { height, width, channels } = this.layout, { values } = this.tensor;
    const picture = new ImageData(width, height), scale = 255 / (high - low || 1);
    const pixels = picture.data;
    for (let y = 0, at = 0; y < height; y++)
      for (let x = 0; x < width; x++, at += 4) {
        let missing = false;
        for (let channel = 0; channel < 4; channel++) {
          if (channel === 3 && channels < 4) { pixels[at + 3] = 255; continue; }
          const number = Number(values[indexOf(this.layout, this.plane, Math.min(channel, channels - 1), y, x)]);
          missing ||= Number.isNaN(number);
          pixels[at + channel] = (number - low) * scale + 0.5;
        }
        if (missing) pixels.set([255, 0, 255, 255], at);
      }
    const canvas = new OffscreenCanvas(width, height);
    canvas.getContext("2d").putImageData(picture, 0, 0);
    return { canvas, pixels };
  }

  #geometry() {
    const box = this.canvas.getBoundingClientRect();
    const { height, width } = this.layout;
    const scale = Math.min(box.width / width, box.height / height) * this.view.zoom;
    // The picture stays in the middle where it is smaller than the box.
    const at = (size, room, centre) => (size * scale <= room ? (room - size * scale) / 2 : room / 2 - centre * size * scale);
    const left = at(width, box.width, this.view.x), top = at(height, box.height, this.view.y);
    return { box, scale, left, top };
  }

  draw() {
    const { canvas } = this, ratio = devicePixelRatio || 1;
    const box = canvas.getBoundingClientRect();
    if (!box.width) return;
    canvas.width = Math.round(box.width * ratio);
    canvas.height = Math.round(box.height * ratio);
    const context = canvas.getContext("2d"), style = getComputedStyle(canvas);
    if (!this.#picture) {
      const text = this.tensor ? "Too large to draw, or without elements" : "";
      context.font = `${14 * ratio}px ${style.fontFamily}`;
      context.textAlign = "center";
      context.fillStyle = style.getPropertyValue("--muted");
      return context.fillText(text, canvas.width / 2, canvas.height / 2);
    }
    if (!this.#cell) this.#tell();
    const { scale, left, top } = this.#geometry(), { height, width } = this.layout;
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = scale * ratio < 1;
    context.imageSmoothingQuality = "high";
    context.drawImage(this.#picture.canvas, left, top, width * scale, height * scale);
    if (scale >= NUMBERS_FROM) this.#drawNumbers(context, style, { box, scale, left, top });
    if (this.#cell) {
      const size = Math.max(scale, 3);
      context.lineWidth = 2;
      for (const [colour, grow] of [["#000", 1], ["#fff", 0]]) {
        context.strokeStyle = colour;
        context.strokeRect(left + this.#cell.x * scale - grow, top + this.#cell.y * scale - grow, size + 2 * grow, size + 2 * grow);
      }
    }
  }

  #drawNumbers(context, style, { box, scale, left, top }) {
    const { height, width } = this.layout;
    const first = { x: Math.max(0, Math.floor(-left / scale)), y: Math.max(0, Math.floor(-top / scale)) };
    const last = { x: Math.min(width, Math.ceil((box.width - left) / scale)), y: Math.min(height, Math.ceil((box.height - top) / scale)) };
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let y = first.y; y < last.y; y++)
      for (let x = first.x; x < last.x; x++) {
        const [red, green, blue] = this.#picture.pixels.subarray(4 * (y * width + x));
        const light = 0.3 * red + 0.59 * green + 0.11 * blue > 140;
        context.strokeStyle = light ? "rgb(0 0 0 / 15%)" : "rgb(255 255 255 / 18%)";
        context.lineWidth = 1;
        context.strokeRect(left + x * scale, top + y * scale, scale, scale);
        const texts = this.#valuesAt(y, x).map((value) => formatNumber(value, 3));
        const longest = Math.max(...texts.map((text) => text.length));
        const size = Math.min(16, (scale * 1.45) / Math.max(longest, 2), (scale * 0.8) / texts.length);
        if (size < 6) continue;
        context.font = `${size}px ${style.fontFamily}`;
        context.fillStyle = light ? "#111" : "#fff";
        texts.forEach((text, index) =>
          context.fillText(text, left + (x + 0.5) * scale, top + (y + 0.5) * scale + (index - (texts.length - 1) / 2) * size * 1.15),
        );
      }
  }

  #valuesAt(y, x) {
    return Array.from({ length: this.layout.channels }, (_, channel) =>
      this.tensor.values[indexOf(this.layout, this.plane, channel, y, x)],
    );
  }

  /** How large an element is on the screen, so that pictures of other sizes are not taken for equal. */
  #magnification() {
    const { scale } = this.#geometry();
    return this.#picture && scale > 0 ? `, shown at ${Number(scale.toPrecision(3))} ×` : "";
  }

  #tell(aloud = false) {
    if (!this.tensor) return;
    const { height, width } = this.layout;
    const text = this.#cell
      ? `row ${this.#cell.y}, column ${this.#cell.x}: ${this.#valuesAt(this.#cell.y, this.#cell.x).map((value) => formatNumber(value)).join(", ")}`
      : `${counted(height, "row")}, ${counted(width, "column")}${this.#magnification()}`;
    this.readout.textContent = text;
    if (aloud) this.announce(`${this.name}, ${text}`);
  }

  #point(cell, aloud = false) {
    this.#cell = cell;
    this.#tell(aloud);
    this.draw();
  }

  /** The element at a place on the screen; null beside the picture. */
  #cellAt({ clientX, clientY }) {
    if (!this.#picture) return null;
    const { box, scale, left, top } = this.#geometry();
    const x = Math.floor((clientX - box.left - left) / scale), y = Math.floor((clientY - box.top - top) / scale);
    return x >= 0 && y >= 0 && x < this.layout.width && y < this.layout.height ? { x, y } : null;
  }

  /** Zooms so that what is below the pointer stays there. */
  zoomAt({ clientX, clientY }, factor) {
    if (!this.#picture) return;
    const { box, scale, left, top } = this.#geometry(), { height, width } = this.layout;
    const x = (clientX - box.left - left) / (scale * width), y = (clientY - box.top - top) / (scale * height);
    const before = this.view.zoom, zoom = Math.min(MOST_ZOOM, Math.max(1, before * factor)), moved = 1 - before / zoom;
    this.view.set({ zoom, x: this.view.x + (x - this.view.x) * moved, y: this.view.y + (y - this.view.y) * moved });
  }

  #listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return; // the page scrolls
      event.preventDefault();
      this.zoomAt(event, 2 ** (-event.deltaY / 200));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      this.#pointers.set(event.pointerId, event);
      if (this.view.zoom > 1 || this.#pointers.size > 1) canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const type of ["pointerup", "pointercancel", "pointerleave"])
      canvas.addEventListener(type, (event) => this.#pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => this.#point(null));
    canvas.addEventListener("dblclick", (event) => this.zoomAt(event, event.shiftKey ? 0.5 : 2));
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #move(event) {
    const before = this.#pointers.get(event.pointerId);
    if (before && this.#picture) {
      const others = [...this.#pointers.values()].filter((each) => each.pointerId !== event.pointerId);
      this.#pointers.set(event.pointerId, event);
      if (others.length) {
        const apart = (a, b) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) || 1;
        this.zoomAt(event, apart(event, others[0]) / apart(before, others[0]));
      } else if (this.view.zoom > 1) {
        const { scale } = this.#geometry(), { height, width } = this.layout;
        this.view.set({
          x: this.view.x - (event.clientX - before.clientX) / (scale * width),
          y: this.view.y - (event.clientY - before.clientY) / (scale * height),
        });
      }
    }
    this.#point(this.#cellAt(event));
  }

  #key(event) {
    if (!this.#picture || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = event.shiftKey ? 10 : 1;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    const { height, width } = this.layout;
    if (event.key in moves) {
      const [dx, dy] = moves[event.key], from = this.#cell ?? { x: -Math.max(dx, 0), y: -Math.max(dy, 0) };
      const clamp = (value, size) => Math.min(size - 1, Math.max(0, value));
      const cell = { x: clamp(from.x + dx, width), y: clamp(from.y + dy, height) };
      this.view.set(this.view.zoom > 1 ? { x: (cell.x + 0.5) / width, y: (cell.y + 0.5) / height } : {});
      this.#point(cell, true);
    } else if (event.key === "+" || event.key === "=") this.view.set({ zoom: this.view.zoom * 2 });
    else if (event.key === "-") this.view.set({ zoom: this.view.zoom / 2 });
    else if (event.key === "0") this.view.set({ zoom: 1 });
    else return;
    event.preventDefault();
  }
}
