// A client of mqtt.js: subscribes, says so, and publishes what it gets at another topic; ends when it is told to.
const mqtt = require("mqtt");
const [url, version] = process.argv.slice(2);
const client = mqtt.connect(url, { protocolVersion: Number(version), reconnectPeriod: 0 });
client.on("error", (error) => { console.error(String(error)); process.exit(1); });
client.on("close", () => process.exit(0));
client.on("connect", () => client.subscribe("to/js", (error) => console.log(error ? String(error) : "ready")));
client.on("message", (topic, payload, packet) => {
  if (payload.toString() === "end") client.end();
  else client.publish("from/js", payload, { properties: { userProperties: packet.properties?.userProperties } });
});
