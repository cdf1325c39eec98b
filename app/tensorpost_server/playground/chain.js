/** The chain on the page: its steps, and what the server says of them. */

import { validate } from "./api.js";
import { madeText } from "./chain_list.js";
import { graphCallOf } from "./operators.js";
import { INPUT, graphOf, named, pathInStep, stepOf, titleOf, walk } from "./steps.js";

export class Chain {
  steps = [];
  /** What each step makes, and what is wrong with it. @type {Map<object, {made: string, errors: string[]}>} */
  facts = new Map();

  /** The steps with this one, which stands after them where it is none of them yet. */
  with(step) {
    return this.steps.includes(step) ? this.steps : [...this.steps, named(step, this.steps)];
  }

  move(step, by) {
    const place = this.steps.indexOf(step);
    this.steps.splice(place, 1);
    this.steps.splice(place + by, 0, step);
    for (const each of this.steps) each.reads = "";
    return place + by;
  }

  /** Takes a step out. @returns {object | undefined} the one that stands in its place, or before it */
  remove(step) {
    const place = this.steps.indexOf(step);
    this.steps.splice(place, 1);
    if (this.steps[place]) this.steps[place].reads = "";
    return this.steps[Math.min(place, this.steps.length - 1)];
  }

  open(steps) {
    this.steps = steps;
    this.facts = new Map();
  }

  /** What a step at this place reads, as far as the steps before it are valid. */
  async ownAt(place, tensor, level) {
    const walked = place ? await walk(tensor, this.steps.slice(0, place), level) : [], last = walked.at(-1);
    const made = last?.verdict?.outputs?.find(({ name }) => name === this.steps[place]?.reads) ?? last?.verdict?.outputs?.[0];
    return made ? { type: made.dtype, shape: made.shape } : last?.own ?? tensor;
  }

  /** The document of all steps. @throws {Error} one of them is not valid */
  async document(tensor, level) {
    const walked = await walk(tensor, this.steps, level), wrong = walked.findIndex(({ verdict }) => !verdict?.valid);
    if (wrong >= 0) throw new Error(`${titleOf(this.steps[wrong], wrong)}, is not valid yet. A chain is saved when all its steps are.`);
    return graphOf(tensor, this.steps, walked);
  }

  /** Validates the steps up to one as a graph; later ones too, to say at them what is wrong. */
  async validate(step, tensor, level, signal) {
    const steps = this.with(step), place = steps.indexOf(step), walked = await walk(tensor, steps, level, signal);
    const unread = walked.findIndex(({ error }) => error), readable = unread < 0 ? walked.length : unread;
    const graph = (count, exact) => graphOf(tensor, steps.slice(0, count), walked, exact);
    const ask = (count) => validate(graph(count, true), level, signal);
    const whole = readable ? await ask(readable) : null, violations = whole?.violations ?? [];
    this.facts = new Map(steps.map((each, index) => [each, { made: madeText(walked[index]?.verdict), errors: index === unread ? [walked[unread].error] : [] }]));
    const own = violations.filter((each) => stepOf(each) === place).map((each) => ({ ...each, path: pathInStep(each) }));
    const found = { verdict: whole, own, errors: this.tellAtSteps(violations, step), reads: walked[place]?.own };
    if (violations.some((each) => stepOf(each) <= place)) return found;
    if (place >= readable) { // behind a step of which nothing is known
      const wrong = walked.length - 1, { error, verdict } = walked[wrong];
      return { ...found, verdict: null, errors: [`${titleOf(steps[wrong], wrong)}: ${error || verdict.violations.map(({ message }) => message).join("; ")}`] };
    }
    const verdict = place + 1 === readable ? whole : await ask(place + 1), shown = graph(place + 1, false);
    return { ...found, verdict, graph: shown, steps: steps.slice(0, place + 1), walked, later: steps.length - place - 1, tensors: { [INPUT]: tensor },
      callOf: (options) => graphCallOf(shown, { ...options, answerType: verdict.outputs[0]?.dtype }) };
  }

  /** Puts violations of a graph at their steps. @returns the violations, with the titles of the steps as paths */
  tellAtSteps(violations, step) {
    const steps = this.with(step);
    return violations.map((violation) => {
      const place = stepOf(violation), path = pathInStep(violation).replace("$.desc.", "").replace("$.", "");
      if (!steps[place]) return violation;
      this.facts.get(steps[place])?.errors.push(`${path} ${violation.message}`);
      return { path: `${titleOf(steps[place], place)}: ${path}`, message: violation.message };
    });
  }
}
