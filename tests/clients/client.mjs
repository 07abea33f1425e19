// Use the server with the npm packages `translate` and `libretranslate`: node client.mjs URL
import assert from "node:assert";
import translate from "translate";
import libretranslate from "libretranslate";

const url = process.argv[2].replace(/\/$/, "");
translate.engine = "libre";
translate.url = `${url}/translate`;
assert.equal(await translate("你好", { from: "zh", to: "en" }), "Hello");
console.log("npm translate works");
assert.equal(await libretranslate.translate({ query: "你好", source: "zh-Hans", target: "en", apiurl: url }), "Hello");
console.log("npm libretranslate works");
