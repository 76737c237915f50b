// What a view adds once the reader's hand rests, for it takes a search: the end of its sentence, and what it tells beneath.

import { Hands } from "./hands.js";

const RESTS = 150; // milliseconds until a hand that holds a thumb still is taken to rest

export class Rest {
  constructor(view) {
    this.view = view;
    this.sections = [...view.root.querySelectorAll(".live-beneath [data-section]")];
    this.told = view.setting();
    view.root.addEventListener("live-rest", () => view.busy || this.after());
  }

  /** While a view plays, its sentence says what happens; what is worth trying comes once it stops. */
  get plays() {
    return this.view.root.querySelector("[data-playing]") !== null;
  }

  /** After a picture: the words, then the sections one by one, until the reader goes on. */
  async after(moved = null) {
    const { view } = this;
    const setting = view.setting();
    const same = () => !view.busy && setting === view.setting();
    const now = () => same() && !view.guess?.locked;
    const waits = view.data.spec.advises || this.sections.length;
    for (const section of this.sections) section.toggleAttribute("data-stale", setting !== this.told);
    if (waits && (view.held || moved)) await new Promise((done) => setTimeout(done, RESTS));
    if (view.data.spec.advises && now() && !this.plays) await this.advise(now);
    if (same()) view.room.leave();
    if (setting !== this.told) this.tell(setting, now);
  }

  /** End the sentence with what is worth trying. */
  async advise(now) {
    const { data, params, sentence } = this.view;
    const { advice } = await this.view.runtime.call("advice", { stem: data.stem, params });
    if (advice && now() && !this.plays) this.view.say(`${sentence} ${advice}`);
  }

  async tell(setting, now) {
    const { data, params } = this.view;
    for (const section of this.sections) {
      if (!now()) return;
      const asked = { stem: data.stem, params, section: section.dataset.section };
      let found = { more: true };
      while (found.more && now()) found = await this.view.runtime.call("beneath", asked);
      if (found.html === undefined || !now()) return;
      this.put(section, found.html);
    }
    this.told = setting;
  }

  /** Another text in a section; what had the focus still has it. */
  put(section, html) {
    const { activeElement } = section.getRootNode();
    const mark = section.contains(activeElement) ? activeElement.dataset.mark : undefined;
    section.innerHTML = html;
    section.removeAttribute("data-stale");
    this.arm([section]);
    const same = mark && [...section.querySelectorAll(`[data-mark="${CSS.escape(mark)}"]`)];
    if (same) same.find((one) => one.checkVisibility())?.focus({ preventScroll: true });
  }

  /** Bring to life what pictures beneath offer, and links into another view's setting. */
  arm(sections = this.sections) {
    for (const section of sections) {
      for (const link of section.querySelectorAll("a[data-fragment]")) {
        const whole = () => { link.hash = link.dataset.fragment; };
        for (const kind of ["pointerover", "focus"]) link.addEventListener(kind, whole);
      }
      for (const box of section.querySelectorAll(".live-figure")) new Hands({ box, paint() {} }, this.view).arm();
    }
  }
}
