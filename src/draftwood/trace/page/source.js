"use strict";

async function unpack(base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/**
 * What the page reads. A source of live rounds has the same methods:
 *   open()                       a promise; afterwards the others may be called
 *   texts()                      [{title, plain, translation, prompt, source, text, first}]; first is null while a text grows
 *   rounds(text)                 the rounds so far: [{number, end, tokens, pieces, nodes, accepted, own, stop}]
 *   figure(text, round, width)   a promise of {svg, text}: figure 1, or figure 3 of a translation
 *   race(width)                  a promise of {svg}: figure 2; null where there are no two runs of a prompt
 *   subscribe(listener)          listener(text) is called when a text has new rounds, or its end; returns a function that ends it
 */
class RecordedSource {
  constructor(root) {
    this.root = root;
    this.blocks = new Map();
  }

  async open() {
    this.record = await this.block("record");
  }

  block(name) {
    if (!this.blocks.has(name)) {
      this.blocks.set(name, unpack(this.root.getElementById(`dw-${name}`).textContent));
    }
    return this.blocks.get(name);
  }

  texts() {
    return this.record.texts;
  }

  rounds(text) {
    return this.record.texts[text].rounds;
  }

  async figure(text, round, width) {
    const { layouts, chunk } = this.record;
    const layout = layouts.findLastIndex((least) => width >= least);
    const block = await this.block(`figures-${text}-${Math.max(0, layout)}-${Math.floor(round / chunk)}`);
    const words = await this.block(`words-${text}-${Math.floor(round / chunk)}`);
    return { svg: block[round % chunk], text: words[round % chunk] };
  }

  async race(width) {
    if (!this.record.race) return null;
    const svgs = await this.block("race");
    return { svg: svgs[Math.max(0, this.record.layouts.findLastIndex((least) => width >= least))] };
  }

  subscribe() {
    return () => {};
  }
}
