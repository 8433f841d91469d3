// What `Browser` does within a page: finds things by what a person sees of them.
globalThis.person = {
  seen: (element) => element.getClientRects().length > 0,
  said: (element) => [element.innerText, element.getAttribute("aria-label")].map((text) => text?.trim().replace(/\s+/g, " ")),

  /** Click what has this text or label; false while there is no such thing that can be clicked. */
  click(text, within) {
    const places = [...document.querySelectorAll(within)];
    const found = places.flatMap((place) => [...place.querySelectorAll("a, button, summary, input[type=checkbox]")]);
    const one = found.find((element) => this.said(element).includes(text) && !element.disabled && this.seen(element));
    one?.click();
    return Boolean(one);
  },

  /** Put the focus into the field with this label, and choose what is in it. */
  enter(label, within) {
    const labels = [...(document.querySelector(within)?.querySelectorAll("label") ?? [])];
    const one = labels.find((element) => this.said(element).includes(label) && this.seen(element.control));
    one?.control.focus();
    one?.control.select?.();
    return Boolean(one);
  },

  /** Choose in the list with this label what is called so. */
  choose(label, text, within) {
    if (!this.enter(label, within)) return false;
    const list = document.activeElement;
    const option = [...(list.options ?? [])].find((one) => one.text === text);
    if (!option) return false;
    list.value = option.value;
    list.dispatchEvent(new Event("change", { bubbles: true }));
    return true;
  },

  /** Give the name of what has the focus. */
  focused() {
    const one = document.activeElement;
    return one === document.body ? "" : one.getAttribute("aria-label") || one.labels?.[0]?.innerText.trim() || one.innerText.trim();
  },

  /** Give the controls that have no name. */
  unnamed() {
    const controls = [...document.querySelectorAll("input, select, textarea, button")];
    return controls.filter((one) => !(one.labels?.length || one.getAttribute("aria-label") || one.innerText.trim())).map((one) => one.outerHTML);
  },
};
