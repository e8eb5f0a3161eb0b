package volume

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Parts of error texts from the validation of Kubernetes.
const (
	badName = `a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`
	badKey  = `a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')`
	badMode = `must be an octal number with a leading zero, from "0000" to "0777"`

	badID           = "must be a decimal number from 0 to 2147483647"
	badRange        = "must be between 0 and 2147483647, inclusive"
	noJSON          = "must be YAML that can be written as JSON: names of fields must be strings, and numbers and tags must be those of JSON"
	knownAttributes = "unknown attribute; known are configMap, secret, volume, namespace, optional, items, sources, defaultMode, uid, gid, updatePolicy, writeStrategy, onDelete, spread, sameRevision, directories"
	badSpread       = "must be a duration from 1s to 1h, such as 5m, or 0s for none"
	otherNamespace  = `must be the pod's own namespace "ns": this node's plugin shows no objects of others (--cross-namespace)`
	noNamespace     = "Required value: must name a namespace; leave the field out for the pod's own"
	badNamespace    = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
	besideVolume    = "Forbidden: must not be set beside volume: the pod's own volume sets this"
)

type refused struct {
	name       string
	attributes map[string]string
	want       string
}

func refusedCases() []refused {
	with := func(more ...string) map[string]string {
		attributes := map[string]string{"secret": "s"}
		for i := 0; i < len(more); i += 2 {
			attributes[more[i]] = more[i+1]
		}
		return attributes
	}
	defaultMode := func(value, shown string) refused {
		return refused{"default mode " + value, with("defaultMode", value), "defaultMode: Invalid value: " + shown + ": " + badMode}
	}
	long := strings.Repeat("x", 70)
	return []refused{
		{"nothing", nil, "sources: Required value: one of configMap, secret, volume and sources must be set"},
		{"nothing but the kubelet's", map[string]string{"csi.storage.k8s.io/pod.name": "p"}, "sources: Required value: one of configMap, secret, volume and sources must be set"},
		{"both short forms", with("configMap", "c"), "secret: Forbidden: must not be set beside configMap: list both in sources"},
		{"unknown", with("colour", "red"), "colour: Forbidden: " + knownAttributes},
		{"unknown by its case", with("defaultmode", "0400"), "defaultmode: Forbidden: unknown attribute; did you mean defaultMode?"},
		{"nothing but one by its case", map[string]string{"configmap": "a"}, "configmap: Forbidden: unknown attribute; did you mean configMap?"},
		{"unknown and long", with(long, ""), `"` + long[:64] + `... (70 bytes)": Forbidden: ` + knownAttributes},
		{"unknown and unprintable", with("a\n\x1b[31m", ""), `"a\n\x1b[31m": Forbidden: ` + knownAttributes},
		{"unknown and empty", with("", ""), `"": Forbidden: ` + knownAttributes},
		{"another driver's prefix", with("csi.storage.k8s.io.example/x", ""), "csi.storage.k8s.io.example/x: Forbidden: " + knownAttributes},
		{"write strategy", with("writeStrategy", "inplace"), `writeStrategy: Unsupported value: "inplace": supported values: "Atomic", "InPlace"`},
		{"negative uid", with("uid", "-1"), `uid: Invalid value: "-1": ` + badID},
		{"gid out of range", with("gid", "2147483648"), `gid: Invalid value: "2147483648": ` + badID},
		{"update policy", with("updatePolicy", "pinned"), `updatePolicy: Unsupported value: "pinned": supported values: "Live", "Pinned"`},
		{"delete policy", with("onDelete", "Delete"), `onDelete: Unsupported value: "Delete": supported values: "Keep", "Remove"`},
		{"spread that is too long", with("spread", "2h"), `spread: Invalid value: "2h": ` + badSpread},
		{"spread that is too short", with("spread", "999ms"), `spread: Invalid value: "999ms": ` + badSpread},
		{"spread without a unit", with("spread", "60"), `spread: Invalid value: "60": ` + badSpread},
		{"sameRevision that is no boolean", with("sameRevision", "yes"), `sameRevision: Unsupported value: "yes": supported values: "false", "true"`},
		{"sameRevision of what is rewritten in place", with("writeStrategy", "InPlace", "sameRevision", "true"), "sameRevision: Forbidden: must not be true beside writeStrategy InPlace: readers of such a volume may see a change of several files half done"},
		{"spread of what is pinned", map[string]string{"secret": "db", "updatePolicy": "Pinned", "spread": "5m"}, "spread: Forbidden: must not be set beside updatePolicy Pinned: such a volume never changes"},
		{"another namespace", with("namespace", "platform"), `namespace: Invalid value: "platform": ` + otherNamespace},
		{"empty namespace", with("namespace", ""), "namespace: " + noNamespace},
		{"namespace with a dot", with("namespace", "a.b"), `namespace: Invalid value: "a.b": must not contain dots`},
		{"long namespace", with("namespace", long), `namespace: Invalid value: "` + long[:64] + `... (70 bytes)": must be no more than 63 characters`},
		{"bad namespace", with("namespace", "A"), `namespace: Invalid value: "A": ` + badNamespace},
		{"empty ConfigMap name", map[string]string{"configMap": ""}, "configMap: Required value: must name a ConfigMap"},
		{"both a Secret and a volume", with("volume", "v"), "volume: Forbidden: must not be set beside secret: list both in sources"},
		{"empty volume name", map[string]string{"volume": ""}, "volume: Required value: must name a volume of the pod"},
		{"volume with a namespace", map[string]string{"volume": "v", "namespace": "ns"}, "namespace: " + besideVolume},
		{"optional volume", map[string]string{"volume": "v", "optional": "true"}, "optional: " + besideVolume},
		{"volume with items", map[string]string{"volume": "v", "items": "[]"}, "items: " + besideVolume},
		{"bad ConfigMap name", map[string]string{"configMap": "App"}, `configMap: Invalid value: "App": ` + badName},
		{"long name", map[string]string{"secret": strings.Repeat("x", 254)}, `secret: Invalid value: "` + long[:64] + `... (254 bytes)": must be no more than 253 characters`},
		{"optional in another case", with("optional", "True"), `optional: Unsupported value: "True": supported values: "false", "true"`},
		defaultMode("", `""`),
		{"empty items", with("items", ""), "items: Required value: must be YAML or JSON"},
		{"items as a string", with("items", "k"), `items: Invalid value: "string": must be a list`},
		{"item path", with("items", "[{key: k, path: k}, {key: k, path: ../x}]"), `items[1].path: Invalid value: "../x": must not contain ".."`},
		{"item collision", with("items", "[{key: k, path: a/b}, {key: l, path: a}]"), `items[0].path: Invalid value: "a/b": must not lie below "a", which items[1].path makes a file`},
		// The nearest file above a path is found, whatever sorts between them.
		{"item beside what sorts between", with("items", "[{key: k, path: a-b}, {key: k, path: a/b}, {key: l, path: a}]"), `items[1].path: Invalid value: "a/b": must not lie below "a", which items[2].path makes a file`},
		{"item far below a file", with("items", "[{key: k, path: a}, {key: k, path: a-b}, {key: k, path: a/b/c/d}]"), `items[2].path: Invalid value: "a/b/c/d": must not lie below "a", which items[0].path makes a file`},
		{"item below the nearest file", with("items", "[{key: k, path: a/b/c/d}, {key: k, path: a/b}, {key: k, path: a/b-/c}]"), `items[0].path: Invalid value: "a/b/c/d": must not lie below "a/b", which items[1].path makes a file`},
		{
			"sources beside the short form",
			map[string]string{"sources": "[{secret: {name: s}}]", "configMap": "c", "secret": "s", "namespace": "ns", "optional": "true", "items": "[]"},
			"[configMap: Forbidden: must not be set beside sources: name the object in sources" +
				", secret: Forbidden: must not be set beside sources: name the object in sources" +
				", namespace: Forbidden: must not be set beside sources: name the object in sources" +
				", optional: Forbidden: must not be set beside sources: name the object in sources" +
				", items: Forbidden: must not be set beside sources: name the object in sources]",
		},
		{
			"everything wrong is told",
			map[string]string{"configMap": "A_", "colour": "red", "uid": "x", "namespace": "other", "optional": "yes", "items": "[{key: k, path: /x}]", "defaultMode": "9"},
			"[colour: Forbidden: " + knownAttributes + `, defaultMode: Invalid value: "9": ` + badMode +
				`, uid: Invalid value: "x": ` + badID +
				`, optional: Unsupported value: "yes": supported values: "false", "true"` +
				`, configMap: Invalid value: "A_": ` + badName +
				`, namespace: Invalid value: "other": ` + otherNamespace +
				`, items[0].path: Invalid value: "/x": must be relative]`,
		},
	}
}

func TestParseRefuses(t *testing.T) {
	cases := refusedCases()
	for _, c := range slices.Concat(refusedSourcesCases(), refusedEnvCases(), refusedExpandCases()) {
		cases = append(cases, refused{c.name, listing(c.sources), c.want})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			spec, err := Parse(c.attributes, testPod())
			if spec != nil {
				t.Errorf("got a spec: %+v", *spec)
			}
			checkError(t, err, c.want)
			checkErrorText(t, err)
		})
	}
}

type refusedSources struct {
	name, sources, want string
}

func refuse(name, sources, want string) refusedSources { return refusedSources{name, sources, want} }

func refusedSourcesCases() []refusedSources {
	const (
		knownKinds  = "unknown field; known are configMap, env, expand, join, podEnv, secret, versions, volume"
		oneKind     = "must have one of configMap, env, expand, join, podEnv, secret, versions, volume"
		knownFields = "unknown field; known are canary, items, name, namespace, optional, path"
		knownItem   = "unknown field; known are key, mode, path, user"
	)
	secret := func(name, fields, want string) refusedSources {
		return refusedSources{name, "[{secret: {" + fields + "}}]", "sources[0].secret" + want}
	}
	item := func(name, fields, want string) refusedSources {
		return secret(name, "name: s, items: [{"+fields+"}]", ".items[0]"+want)
	}
	mode := func(value, want string) refusedSources {
		return item("mode "+value, "key: k, path: k, mode: "+value, ".mode: Invalid value: "+want)
	}
	user := func(value, want string) refusedSources {
		return item("user "+value, "key: k, path: k, user: "+value, ".user: Invalid value: "+want)
	}
	const (
		notAUser   = "must be an integer"
		badInteger = "must be an integer from 0 to 511 (octal 0777)"
		notAMode   = badInteger + " or an octal string"
		binary     = "must be without binary texts: line 1 has one; write the text itself"
		octal      = "must have octal numbers where they begin with 0: line 1 has another one; put quotes around what is not a number"
	)
	document := func(name, fields, want string) refusedSources {
		text := "[{secret: {name: s, items: [{" + fields + "}]}}]"
		return refusedSources{name, text, fmt.Sprintf("sources: Invalid value: \"a string of %d bytes\": %s", len(text), want)}
	}
	items := func(name, list, want string) refusedSources {
		return secret(name, "name: s, items: ["+list+"]", want)
	}
	path := func(p, shown, want string) refusedSources {
		return item("path "+p, "key: k, path: "+p, ".path: Invalid value: "+shown+": "+want)
	}
	key := func(k, shown, want string) refusedSources {
		return item("key "+k, "path: k, key: "+k, ".key: Invalid value: "+shown+": "+want)
	}
	long := strings.Repeat("0123456789abcde/", 256) + "f"

	return []refusedSources{
		// The document.
		{"empty", "", "sources: Required value: must be YAML or JSON"},
		{"null", "null", "sources: Required value: must have at least one source"},
		{"mapping", "secret: {name: s}", `sources: Invalid value: "object": must be a list`},
		{"no source", "[]", "sources: Required value: must have at least one source"},
		{"not YAML", "[", `sources: Invalid value: "a string of 1 bytes": must be YAML or JSON: yaml: line 1: did not find expected node content`},
		{"tab", "- secret:\n\tname: s\n", `sources: Invalid value: "a string of 19 bytes": must be YAML or JSON: yaml: line 2: found character that cannot start any token`},
		{"NUL", "- secret:\x00", `sources: Invalid value: "a string of 10 bytes": must be YAML or JSON: yaml: control characters are not allowed`},
		{"not UTF-8", "- \xff", `sources[0]: Invalid value: "string": must be a mapping`},
		{"two documents", "- secret: {name: s}\n---\n- secret: {name: t}\n", `sources: Invalid value: "a string of 44 bytes": must be one YAML or JSON document with nothing after it`},
		{"something after the list", "[{secret: {name: s}}] [{secret: {name: t}}]", `sources: Invalid value: "a string of 43 bytes": must be one YAML or JSON document with nothing after it`},
		{"something after the JSON", `[{"secret":{"name":"s"}}]]`, `sources: Invalid value: "a string of 26 bytes": must be one YAML or JSON document with nothing after it`},
		{"unknown anchor", "[*a]", `sources: Invalid value: "a string of 4 bytes": must be YAML or JSON: yaml: unknown anchor; quote what begins with * or &`},

		// A source.
		{"a volume without a name", "[{volume: {}}]", "sources[0].volume.name: Required value: must name a volume of the pod"},
		{"a volume with a path as its name", "[{volume: {name: ../x}}]", `sources[0].volume.name: Invalid value: "../x": ` + badNamespace},
		{"a volume with more", "[{volume: {name: v, optional: true}}]", "sources[0].volume.optional: Forbidden: unknown field; known are name, path"},
		{"a volume twice", "[{volume: {name: v}}, {secret: {name: s}}, {volume: {name: v}}]", `sources[2].volume.name: Invalid value: "v": must not be shown twice: sources[0].volume.name shows it`},
		{"null source", "[~]", "sources[0]: Required value: " + oneKind},
		{"list as a source", "[[{secret: {name: s}}]]", `sources[0]: Invalid value: "array": must be a mapping`},
		{"empty source", "[{}]", "sources[0]: Required value: " + oneKind},
		{"both kinds", "[{secret: {name: s}, configMap: {name: c}}]", `sources[0]: Invalid value: "object": ` + oneKind + ", not several"},
		{"unknown kind beside a good one", "[{secret: {name: s}, downwardAPI: {}}]", "sources[0].downwardAPI: Forbidden: " + knownKinds},
		{"unknown and null", "[{secret: {name: s}, configmap: }]", "sources[0].configmap: Forbidden: unknown field; did you mean configMap?"},
		{"unprintable field", `[{secret: {name: s}, "a\n\e[31m": 1}]`, `sources[0]."a\n\x1b[31m": Forbidden: ` + knownKinds},
		{"list as a field name", "[{[a]: b, secret: {name: s}}]", `sources: Invalid value: "a string of 29 bytes": ` + noJSON},

		// A projection.
		secret("no name", "", ".name: Required value: must name a Secret"),
		secret("bad name", "name: A", `.name: Invalid value: "A": `+badName),
		secret("another namespace", "name: s, namespace: platform", `.namespace: Invalid value: "platform": `+otherNamespace),
		secret("optional as a string", `name: s, optional: "true"`, `.optional: Invalid value: "string": must be true or false`),
		document("optional that only says it is one", "optional: !!bool perhaps", noJSON),
		secret("unknown field", "name: s, defaultMode: 0400", ".defaultMode: Forbidden: "+knownFields),
		{"repeated name", "[{secret: {name: s,\nname: s}}]", `sources: Invalid value: "a string of 30 bytes": must be YAML or JSON: yaml: line 2: key "name" already set in map`},
		{"repeated name in JSON", `[{"secret":{"name":"s","name":"t"}}]`, "sources[0].secret.name: Forbidden: must not be set twice"},
		{"projection as a string", "[{secret: s}]", `sources[0].secret: Invalid value: "string": must be a mapping`},

		// An item.
		secret("items as a mapping", "name: s, items: {k: p}", `.items: Invalid value: "object": must be a list`),
		items("string as an item", "k", `.items[0]: Invalid value: "string": must be a mapping`),
		{"null item", "[{secret: {name: s, items: [~]}}]", "[sources[0].secret.items[0].key: Required value: must name a key of the object, sources[0].secret.items[0].path: Required value: must be a relative path]"},
		item("no key", "path: k", ".key: Required value: must name a key of the object"),
		item("path as a list", "path: [a, b], key: k", `.path: Invalid value: "array": must be a string (quote it)`),
		item("unknown field of an item", "key: k, path: k, uid: 1", ".uid: Forbidden: "+knownItem),
		key("a/b", `"a/b"`, badKey),
		key("..", `".."`, `must not be '..'`),
		key("..data", `"..data"`, `must not start with '..'`),
		key(strings.Repeat("k", 254), `"`+strings.Repeat("k", 64)+`... (254 bytes)"`, "must be no more than 253 characters"),
		path("..", `".."`, `must not contain ".."`),
		path("..data", `"..data"`, `must not start with ".."`),
		path(long, `"`+long[:64]+`... (4097 bytes)"`, "must have at most 4096 bytes"),
		user("-1", "-1: "+badRange),
		user("2147483648", "2147483648: "+badRange),
		user(`"1000"`, `"string": `+notAUser),
		mode("512", "512: "+badInteger),
		mode("-0440", "-288: "+badInteger),
		mode("18446744073709551615", `"number": `+notAMode),
		document("mode of digits beyond 7", "mode: 0888", octal),
		document("decimal mode with a zero", "mode: 0480", octal),
		document("decimal mode with a sign, an underscore and a fraction", "mode: +0_480.0", octal),
		document("mode that is no number", "mode: .nan", noJSON),
		mode("2.88", `"number": `+notAMode),
		mode("[0440]", `"array": `+notAMode),
		mode(`"440"`, `"440": `+badMode),

		// Collisions.
		items("one path twice", "{key: a, path: p}, {key: b, path: p}",
			`.items[1].path: Invalid value: "p": conflicting duplicate paths: also the path of sources[0].secret.items[0].path`),
		items("one path written in two ways", "{key: a, path: d/p}, {key: b, path: ./d//p}",
			`.items[1].path: Invalid value: "d/p": conflicting duplicate paths: also the path of sources[0].secret.items[0].path`),
		items("file, then below it", "{key: a, path: d}, {key: b, path: d/e/f}",
			`.items[1].path: Invalid value: "d/e/f": must not lie below "d", which sources[0].secret.items[0].path makes a file`),
		items("below it, then the file", "{key: a, path: d/e/f}, {key: b, path: d}",
			`.items[0].path: Invalid value: "d/e/f": must not lie below "d", which sources[0].secret.items[1].path makes a file`),
		refuse("one path in two sources", "[{secret: {name: s, items: [{key: a, path: p}]}}, {configMap: {name: c}}, {configMap: {name: c, items: [{key: b, path: p}]}}]",
			`sources[2].configMap.items[0].path: Invalid value: "p": conflicting duplicate paths: also the path of sources[0].secret.items[0].path`),
		refuse("file and directory in two sources", "[{secret: {name: s, items: [{key: a, path: p}]}}, {configMap: {name: c, items: [{key: b, path: p/q}]}}]",
			`sources[1].configMap.items[0].path: Invalid value: "p/q": must not lie below "p", which sources[0].secret.items[0].path makes a file`),

		// Several at the same time, in the order of the text.
		refuse("errors of several sources", "[{secret: {name: S}}, 1, {configMap: {name: c, items: [{key: k, path: /p, mode: 888}, {key: k, path: /p}]}}, {env: {}}, {colour: red}, {secret: {name: s}}]",
			`[sources[0].secret.name: Invalid value: "S": `+badName+
				`, sources[1]: Invalid value: "number": must be a mapping`+
				`, sources[2].configMap.items[0].path: Invalid value: "/p": must be relative`+
				`, sources[2].configMap.items[0].mode: Invalid value: 888: `+badInteger+
				`, sources[2].configMap.items[1].path: Invalid value: "/p": must be relative`+
				`, sources[3].env.path: Required value: must be a relative path`+
				`, sources[4].colour: Forbidden: `+knownKinds+`]`),
		{"binary name", "[{secret: {name: !!binary cw==}}]", `sources: Invalid value: "a string of 33 bytes": ` + binary},
		{"hidden namespace", "[{secret: {name: s, !!binary bmFtZXNwYWNl: ns}}]", `sources: Invalid value: "a string of 48 bytes": ` + binary},
		{"hidden namespace with a long tag", "[{secret: {name: s, !<tag:yaml.org,2002:binary> bmFtZXNwYWNl: ns}}]", `sources: Invalid value: "a string of 67 bytes": ` + binary},
		{"hidden namespace with a tag of its own", "%TAG !b! tag:yaml.org,2002:\n--- [{secret: {name: s, !b!binary bmFtZXNwYWNl: ns}}]", `sources: Invalid value: "a string of 81 bytes": must be without binary texts: line 2 has one; write the text itself`},
		{"an alias", "[&a {secret: {name: s}}, *a]", `sources: Invalid value: "a string of 28 bytes": must be written out: line 1 has an alias; quote what begins with *`},
		{"an alias as a field's name", "- secret: {name: &n s}\n- {*n : s}\n", `sources: Invalid value: "a string of 34 bytes": must be written out: line 2 has an alias; quote what begins with *`},
	}
}

// An author's text is quoted, whatever the type of the field, because an error ends up in events and on terminals.
func TestRefusalsCanBePrinted(t *testing.T) {
	const odd = `a\x7f\u0085b` // as YAML has it
	for _, attributes := range []map[string]string{
		{"configMap": "app", "onDelete": "Re\x7fmove"},
		{"configMap": "app", "updatePolicy": "\u0085"},
		{"configMap": "app", "writeStrategy": "\x1b[31m"},
		{"configMap": "app", "optional": "\x7f"},
		{"configMap": "app", "defaultMode": "\x7f"},
		{"sources": `[{env: {path: a, format: "` + odd + `"}}]`},
		{"sources": `[{env: {path: a, env: [{name: A, valueFrom: {fieldRef: {fieldPath: "` + odd + `"}}}]}}]`},
		{"sources": `[{env: {path: a, env: [{name: A, valueFrom: {fieldRef: {apiVersion: "` + odd + `", fieldPath: metadata.name}}}]}}]`},
		{"sources": `[{configMap: {name: "` + odd + `"}}]`},
		{"sources": `[{"` + odd + `": {name: app}}]`},
	} {
		_, err := Parse(attributes, testPod())
		if err == nil {
			t.Errorf("%q: no error", attributes)
			continue
		}
		checkErrorText(t, err)
	}
}

// A refusal repeats no value of a variable, wherever a mistake puts it.
func TestRefusalsRepeatNoValue(t *testing.T) {
	const value = "87654321"
	for _, fields := range []string{
		"value: " + value,
		"value: [" + value + "]",
		"value: {a: " + value + "}",
		"value: *" + value,
		"value: !!int x" + value,
		"value: !!bool '" + value + "'",
		"value: !!binary '" + value + "!'",
		"value: !!float '" + value + "x'",
		"value: 0" + value,
		"value: " + value + ".5",
		"value: {[" + value + "]: x}",
		"value: {~: " + value + "}",
		"value: {? {a: " + value + "} : x}",
		"value: 'x', value: '" + value + "'",
		"value: '" + value + "' x",
		"value: \"" + value + "\\q\"",
		"value: .nan, optional: '" + value + "'",
		"<<: '" + value + "'",
		`"value": 1.` + value + `e9`,
		`"value": [{"a": "` + value + `"}]`,
	} {
		_, err := Parse(map[string]string{"sources": "[{env: {path: e, env: [{name: A, " + fields + "}]}}]"}, testPod())
		_, errJSON := Parse(map[string]string{"sources": `[{"env": {"path": "e", "env": [{"name": "A", ` + fields + `}]}}]`}, testPod())
		if err == nil || errJSON == nil || strings.Contains(err.Error()+errJSON.Error(), value) {
			t.Errorf("%s: got %v, in JSON %v", fields, err, errJSON)
		}
	}
}
