// A file of its own and not an inline script, so that the page's Content-Security-Policy can refuse inline scripts.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  persistAuthorization: true, // a key typed once survives a reload; it stays in this browser
  validatorUrl: null, // the default asks a public host to validate the contract
  presets: [SwaggerUIBundle.presets.apis],
});
