// Draws openapi.yaml with Swagger UI. The page is to be read: it sends no requests, so that no one types a token
// into it.
const nothing = () => () => null;
SwaggerUIBundle({
  url: '/v1/openapi.yaml',
  dom_id: '#docs',
  deepLinking: true,
  supportedSubmitMethods: [],
  validatorUrl: null,
  defaultModelsExpandDepth: 0,
  plugins: [() => ({ wrapComponents: { authorizeBtn: nothing, authorizeOperationBtn: nothing } })],
});
