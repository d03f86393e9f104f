// A file of its own and not an inline script, so that the page's Content-Security-Policy can refuse inline scripts.
const place = document.getElementById("swagger-ui");
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

// Without a title, a description and a landmark, which are the page's own. A path is no link: it stands within a button.
const withinThisPage = ({ React }) => {
  const element = React.createElement;
  const Within = ({ getComponent, specSelectors }) => {
    if (specSelectors.loadingStatus() !== "success") return element("p", null, "The contract is being read.");
    const parts = ["errors", "AuthorizeBtnContainer", "operations", "Webhooks", "Models"].map((name) => getComponent(name, true));
    return element("div", { className: "swagger-ui" }, element(getComponent("SvgAssets")), ...parts.map((part) => element(part)));
  };
  return { components: { Within, DeepLink: ({ text }) => element("span", null, text) }, wrapComponents: { curl: withPlaceholder(element) } };
};

// The shown command is that of a program. It never has the key that was typed or that the session has: people paste commands.
const withPlaceholder = (element) => (Curl) => ({ request, ...more }) => {
  const needsKey = new URL(request.get("url"), location).pathname.startsWith("/v1/");
  const shown = needsKey ? request.setIn(["headers", "Authorization"], "Bearer YOUR_KEY") : request;
  return element(Curl, { ...more, request: shown });
};

// Requests of a signed-in user go through the pages, which add the user's key; a key that was typed has precedence.
const asTheUser = (request) => {
  const url = new URL(request.url, location);
  if (place.dataset.csrf && url.pathname.startsWith("/v1/") && !request.headers.Authorization) {
    url.pathname = "/docs" + url.pathname;
    return { ...request, url: url.href, headers: { ...request.headers, "X-CSRF-Token": place.dataset.csrf } };
  }
  return request;
};

// Names for controls that Swagger UI leaves without, and the keyboard for listings that scroll.
const name = (control, text) => control.labels?.length || control.ariaLabel || control.setAttribute("aria-label", text);
const complete = () => {
  for (const control of place.querySelectorAll("select, textarea, input")) {
    const parameter = control.closest("[data-param-name]")?.dataset.paramName;
    name(control, parameter ?? (control.matches(".examples-select-element") ? "Example" : control.matches("textarea") ? "Request body" : "Media type"));
  }
  for (const region of place.querySelectorAll("[role=region]")) name(region, region.id.replaceAll("_", " "));
  for (const button of place.querySelectorAll(".close-modal")) name(button, "Close");
  for (const listing of place.querySelectorAll("pre:not([tabindex])")) listing.tabIndex = 0;
};
new MutationObserver(complete).observe(place, { childList: true, subtree: true });

SwaggerUIBundle({
  url: "/openapi.json",
  domNode: place,
  deepLinking: true,
  persistAuthorization: true, // a key typed once survives a reload; it stays in this browser
  validatorUrl: null, // the default asks a public host to validate the contract
  presets: [SwaggerUIBundle.presets.apis],
  plugins: [withinThisPage],
  syntaxHighlight: { theme: "obsidian" }, // its colours have enough contrast
  layout: "Within",
  requestInterceptor: asTheUser,
  showMutatedRequest: false, // the shown command is not the one that goes through the pages
});
