package volume

import (
	"fmt"
	"io/fs"
	"strings"
)

func expandCases() []accepted {
	mode := fs.FileMode(0o400)
	const at = "sources[0].expand"
	below := func(i int, kind, dir string) Directory {
		return Directory{Path: dir, Field: fmt.Sprintf("sources[%d].%s.path", i, kind)}
	}
	return []accepted{
		accept("expand", listing(`[{expand: {path: d//app.yaml, mode: 0400, configMap: {name: c, key: app.yaml}, envFrom: [{prefix: P_, secretRef: {name: s, optional: true}}],
				env: [{name: A, value: x}, {name: B, value: "$(A)", escape: none}, {name: C, valueFrom: {secretKeyRef: {name: s, key: k}}, escape: json}, {name: D.-, valueFrom: {fieldRef: {fieldPath: metadata.name}}, escape: url}]}}]`),
			liveSpec(Source{Field: at, Path: "d/app.yaml", Mode: &mode, Expand: &Expand{
				Text: Reference{Ref: configMapRef("c"), Key: "app.yaml", Field: at + ".configMap"},
				Env: Env{From: []EnvFrom{{Prefix: "P_", Ref: secretRef("s"), Optional: true, Field: at + ".envFrom[0].secretRef"}}, Vars: []EnvVar{
					{Name: "A", Value: "x"},
					{Name: "B", Value: "$(A)", Escape: EscapeNone},
					{Name: "C", Key: &Reference{Ref: secretRef("s"), Key: "k", Field: at + ".env[2].valueFrom.secretKeyRef"}, Escape: EscapeJSON},
					{Name: "D.-", FieldRef: PodName, Escape: EscapeURL},
				}},
			}})),
		accept("expand of a Secret's text", listing("[{expand: {path: p, secret: {name: s, key: k, namespace: ns, optional: true}, env: [{name: A}]}}]"),
			liveSpec(Source{Field: at, Path: "p", Expand: &Expand{
				Text: Reference{Ref: secretRef("s"), Key: "k", Optional: true, Field: at + ".secret"}, Env: Env{Vars: []EnvVar{{Name: "A"}}},
			}})),
		accept("expand with an object and a variable", listing("[{expand: {path: p, configMap: {name: c, key: k}, envFrom: [{secretRef: {name: s}}], env: [{name: A}]}}]"),
			liveSpec(Source{Field: at, Path: "p", Expand: &Expand{
				Text: Reference{Ref: configMapRef("c"), Key: "k", Field: at + ".configMap"},
				Env:  Env{From: []EnvFrom{{Ref: secretRef("s"), Field: at + ".envFrom[0].secretRef"}}, Vars: []EnvVar{{Name: "A"}}},
			}})),
		accept("directories of sources", listing("[{configMap: {name: c, path: ./rules.d/}}, {secret: {name: s, path: a/b, items: [{key: k, path: ./x//y}]}}, {volume: {name: v, path: rules.d}}, {secret: {name: t, path: rules.d}}]"),
			liveSpec(
				Source{Field: "sources[0].configMap", Below: below(0, "configMap", "rules.d"), Projection: &Projection{Ref: configMapRef("c")}},
				Source{Field: "sources[1].secret", Below: below(1, "secret", "a/b"), Projection: &Projection{Ref: secretRef("s"), Items: []Item{{Key: "k", Path: "a/b/x/y"}}}},
				Source{Field: "sources[2].volume", Below: below(2, "volume", "rules.d"), Volume: "v"},
				Source{Field: "sources[3].secret", Below: below(3, "secret", "rules.d"), Projection: &Projection{Ref: secretRef("t")}},
			)),
		accept("the longest directory of keys", listing("[{secret: {name: s, path: "+longPath(4096-254)+"}}]"),
			liveSpec(Source{Field: "sources[0].secret", Below: below(0, "secret", longPath(4096-254)), Projection: &Projection{Ref: secretRef("s")}})),
	}
}

func longPath(n int) string {
	return (strings.Repeat("0123456789abcde/", n/16) + strings.Repeat("f", 16))[:n-1] + "g"
}

func refusedExpandCases() []refusedSources {
	const (
		at        = "sources[0].expand"
		known     = "unknown field; known are configMap, env, envFrom, mode, path, secret"
		reference = "must not contain $, ( or ): the text refers to the variable by $(NAME)"
		long      = `"0123456789abcde/0123456789abcde/0123456789abcde/0123456789abcde/... `
		length    = "must have at most 4096 bytes, with the directory of the source and a key in it"
	)
	expand := func(name, fields, want string) refusedSources {
		return refusedSources{"expand: " + name, "[{expand: {" + fields + "}}]", want}
	}
	variable := func(name, fields, want string) refusedSources {
		return expand(name, "path: p, secret: {name: s, key: k}, env: [{"+fields+"}]", at+".env[0]"+want)
	}
	dir := func(name, dir, want string) refusedSources {
		return refusedSources{"directory: " + name, "[{secret: {name: s, path: " + dir + "}}]", "sources[0].secret.path: " + want}
	}
	return []refusedSources{
		expand("nothing", "", "["+at+".path: Required value: must be a relative path, "+at+".env: Required value: must have at least one variable, or envFrom an object]"),
		expand("no text", "path: p", "["+at+": Required value: must have one of configMap, secret, "+at+".env: Required value: must have at least one variable, or envFrom an object]"),
		expand("two texts", "path: p, secret: {name: s, key: k}, configMap: {name: c, key: k}, env: [{name: A}]", at+`: Invalid value: "object": must have one of configMap, secret, not several`),
		expand("no name of the text", "path: p, configMap: {key: c}, env: [{name: A}]", at+".configMap.name: Required value: must name a ConfigMap"),
		expand("another namespace", "path: p, configMap: {name: c, key: k, namespace: other}, env: [{name: A}]", at+`.configMap.namespace: Invalid value: "other": `+otherNamespace),
		expand("a format", "path: p, configMap: {name: c, key: k}, env: [{name: A}], format: shell", at+".format: Forbidden: "+known),
		expand("a text in the attributes", "path: p, configMap: {name: c, key: k}, env: [{name: A}], value: x", at+".value: Forbidden: "+known),
		expand("a prefix", `path: p, configMap: {name: c, key: k}, envFrom: [{prefix: "$(", secretRef: {name: s}}]`, at+`.envFrom[0].prefix: Invalid value: "$(": `+reference),
		expand("an escape of a whole object", "path: p, configMap: {name: c, key: k}, envFrom: [{escape: json, secretRef: {name: s}}]", at+".envFrom[0].escape: Forbidden: unknown field; known are configMapRef, prefix, secretRef"),
		variable("no name", "value: x", ".name: Required value: must name a variable"),
		variable("a name that ends the reference", `name: "A)"`, `.name: Invalid value: "A)": `+reference),
		variable("an unknown escape", "name: A, escape: yaml", `.escape: Unsupported value: "yaml": supported values: "json", "url", "none"`),
		{"expand: an escape in an env file", "[{env: {path: e, env: [{name: A, escape: json}]}}]", "sources[0].env.env[0].escape: Forbidden: must not be set in an env file, whose format says how values are quoted; only expand has it"},
		refuse("expand: a key at the same path", "[{expand: {path: e, secret: {name: s, key: k}, env: [{name: A}]}}, {secret: {name: s, items: [{key: k, path: e}]}}]",
			`sources[1].secret.items[0].path: Invalid value: "e": conflicting duplicate paths: also the path of sources[0].expand.path`),
		dir("empty", `""`, "Required value: must be a relative path"),
		dir("the volume itself", "./", `Invalid value: "./": must be a directory in the volume; leave the field out for the volume itself`),
		dir("the writer's own", "..data", `Invalid value: "..data": must not start with ".."`),
		dir("too long for keys", longPath(4096-253), "Invalid value: "+long+`(3844 bytes)": `+length),
		{"directory: of a volume", "[{volume: {name: v, path: ..}}]", `sources[0].volume.path: Invalid value: "..": must not contain ".."`},
		{"directory: in the short form", "[{volume: {name: v, path: [a]}}]", `sources[0].volume.path: Invalid value: "array": must be a string (quote it)`},
		refuse("directory: too long for an item", "[{secret: {name: s, path: "+longPath(2048)+", items: [{key: k, path: "+longPath(2048)+"}]}}]",
			"sources[0].secret.items[0].path: Invalid value: "+long+`(4097 bytes)": `+length),
		refuse("directory: a file there", "[{secret: {name: s, items: [{key: k, path: rules.d}]}}, {configMap: {name: c, path: rules.d/x}}]",
			`sources[1].configMap.path: Invalid value: "rules.d/x/": must not lie below "rules.d", which sources[0].secret.items[0].path makes a file`),
		refuse("directory: an item there", "[{secret: {name: s, path: d, items: [{key: k, path: x}]}}, {configMap: {name: c, items: [{key: k, path: d/x}]}}]",
			`sources[1].configMap.items[0].path: Invalid value: "d/x": conflicting duplicate paths: also the path of sources[0].secret.items[0].path`),
	}
}

func envCases() []accepted {
	mode := fs.FileMode(0o400)
	env := func(path string, env Env) Spec {
		return liveSpec(Source{Field: "sources[0].env", Path: path, Format: EnvDotenv, Env: &env})
	}
	podEnv := func(path string, mode *fs.FileMode, format EnvFormat, container string) Spec {
		return liveSpec(Source{Field: "sources[0].podEnv", Path: path, Mode: mode, Format: format, PodEnv: &PodEnv{container}})
	}
	one := func(text string, v EnvVar) accepted {
		v.Name = "A"
		return accepted{
			"variable of " + text, listing("[{env: {path: e, env: [{name: A, " + text + "}]}}]"),
			env("e", Env{Vars: []EnvVar{v}}),
		}
	}
	const key = "sources[0].env.env[0].valueFrom."
	return []accepted{
		{"env of nothing", listing("[{env: {path: e}}]"), env("e", Env{})},
		accept("env with its own mode, format and directory", listing("[{env: {path: ./d//e, mode: 0400, format: shell}}]"),
			liveSpec(Source{Field: "sources[0].env", Path: "d/e", Mode: &mode, Format: EnvShell, Env: &Env{}})),
		accept("envFrom", listing("[{env: {path: e, format: dotenv, envFrom: [{configMapRef: {name: c}}, {prefix: P-_, secretRef: {name: s, optional: true, namespace: ns}}]}}]"),
			env("e", Env{From: []EnvFrom{
				{Ref: configMapRef("c"), Field: "sources[0].env.envFrom[0].configMapRef"},
				{Prefix: "P-_", Ref: secretRef("s"), Optional: true, Field: "sources[0].env.envFrom[1].secretRef"},
			}})),
		one(`value: ""`, EnvVar{}),
		one(`valueFrom: `, EnvVar{}),
		one(`value: "$(B) #x"`, EnvVar{Value: "$(B) #x"}),
		one(`value: "two\nlines"`, EnvVar{Value: "two\nlines"}),
		one("valueFrom: {configMapKeyRef: {name: c, key: .k}}", EnvVar{Key: &Reference{Ref: configMapRef("c"), Key: ".k", Field: key + "configMapKeyRef"}}),
		one("valueFrom: {secretKeyRef: {name: s, key: k, optional: true, namespace: ns}}", EnvVar{Key: &Reference{Ref: secretRef("s"), Key: "k", Optional: true, Field: key + "secretKeyRef"}}),
		one("value: v, valueFrom: {secretKeyRef: {name: s, key: k}}", EnvVar{Value: "v", Key: &Reference{Ref: secretRef("s"), Key: "k", Field: key + "secretKeyRef"}}),
		one("valueFrom: {fieldRef: {fieldPath: metadata.name}}", EnvVar{FieldRef: PodName}),
		one("valueFrom: {fieldRef: {fieldPath: metadata.namespace}}", EnvVar{FieldRef: PodNamespace}),
		one("valueFrom: {fieldRef: {fieldPath: metadata.uid, apiVersion: v1}}", EnvVar{FieldRef: PodUID}),
		one("valueFrom: {fieldRef: {fieldPath: spec.nodeName}}", EnvVar{FieldRef: PodNodeName}),
		one(`valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName, apiVersion: ""}}`, EnvVar{FieldRef: PodServiceAccount}),
		{"a name that an env file can't hold is for the file to leave out", listing("[{env: {path: e, env: [{name: 1.b-$ (c)}]}}]"), env("e", Env{Vars: []EnvVar{{Name: "1.b-$ (c)"}}})},
		{"podEnv", listing("[{podEnv: {path: e, container: main}}]"), podEnv("e", nil, EnvDotenv, "main")},
		{"podEnv as an environment", listing("[{podEnv: {path: e, container: main, format: environ}}]"), podEnv("e", nil, EnvEnviron, "main")},
		{"podEnv with all fields", listing("[{podEnv: {path: d/e, container: main-2, mode: 0400, format: shell}}]"), podEnv("d/e", &mode, EnvShell, "main-2")},
		accept("versions", listing("[{secret: {name: s}}, {versions: {path: .versions, mode: 0400}}]"),
			liveSpec(Source{Field: "sources[0].secret", Projection: &Projection{Ref: secretRef("s")}}, Source{Field: "sources[1].versions", Path: ".versions", Mode: &mode, Versions: true})),
		accept("join", listing("[{join: {path: d//ca.pem, mode: 0400, sources: [{configMap: {name: c, key: k}}, {secret: {name: s, key: ca.crt, optional: true, namespace: ns}}]}}]"),
			liveSpec(Source{Field: "sources[0].join", Path: "d/ca.pem", Mode: &mode, Join: []Reference{
				{Ref: configMapRef("c"), Key: "k", Field: "sources[0].join.sources[0].configMap"},
				{Ref: secretRef("s"), Key: "ca.crt", Optional: true, Field: "sources[0].join.sources[1].secret"},
			}})),
	}
}

func refusedEnvCases() []refusedSources {
	const badLabel = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
	const badVariable = "a valid environment variable name must consist only of printable ASCII characters other than '='"
	env := func(name, fields, want string) refusedSources {
		return refusedSources{"env: " + name, "[{env: {" + fields + "}}]", "sources[0].env" + want}
	}
	from := func(name, fields, want string) refusedSources {
		return env(name, "path: e, envFrom: [{"+fields+"}]", ".envFrom[0]"+want)
	}
	variable := func(name, fields, want string) refusedSources {
		return env(name, "path: e, env: [{"+fields+"}]", ".env[0]"+want)
	}
	valueFrom := func(name, fields, want string) refusedSources {
		return variable(name, "name: A, valueFrom: {"+fields+"}", ".valueFrom"+want)
	}
	join := func(name, fields, want string) refusedSources {
		return refusedSources{"join: " + name, "[{join: {" + fields + "}}]", want}
	}
	podEnv := func(name, fields, want string) refusedSources {
		return refusedSources{"podEnv: " + name, "[{podEnv: {" + fields + "}}]", "sources[0].podEnv" + want}
	}
	const (
		oneRef     = "must have one of configMapRef, secretRef"
		oneValue   = "must have one of configMapKeyRef, fieldRef, fileKeyRef, resourceFieldRef, secretKeyRef"
		unknowable = "a volume can't know its value; set it in the container's own env"
		fields     = `supported values: "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"`
	)
	return []refusedSources{
		env("nothing", "", ".path: Required value: must be a relative path"),
		env("mode", "path: e, mode: 888", ".mode: Invalid value: 888: must be an integer from 0 to 511 (octal 0777)"),
		env("format", "path: e, format: json", `.format: Unsupported value: "json": supported values: "dotenv", "shell", "environ"`),
		env("unknown field", "path: e, optional: true", ".optional: Forbidden: unknown field; known are env, envFrom, format, mode, path"),
		env("envFrom as a mapping", "path: e, envFrom: {}", `.envFrom: Invalid value: "object": must be a list`),
		from("nothing", "", ": Required value: "+oneRef),
		from("both", "configMapRef: {name: c}, secretRef: {name: s}", `: Invalid value: "object": `+oneRef+", not several"),
		from("no name", "configMapRef: {}", ".configMapRef.name: Required value: must name a ConfigMap"),
		from("another namespace", "secretRef: {name: s, namespace: platform}", `.secretRef.namespace: Invalid value: "platform": `+otherNamespace),
		from("unknown field", "secretRef: {name: s, key: k}", ".secretRef.key: Forbidden: unknown field; known are canary, name, namespace, optional"),
		from("prefix", "prefix: A=, secretRef: {name: s}", `.prefix: Invalid value: "A=": `+badVariable),
		variable("no name", "value: v", ".name: Required value: must name a variable"),
		variable("name with an equals sign", "name: A=B", `.name: Invalid value: "A=B": `+badVariable),
		variable("value as an integer", "name: A, value: 1", `.value: Invalid value: "number": must be a string (quote it)`),
		valueFrom("nothing", "", ": Required value: "+oneValue),
		valueFrom("two", "fieldRef: {fieldPath: metadata.name}, secretKeyRef: {name: s, key: k}", `: Invalid value: "object": `+oneValue+", not several"),
		valueFrom("resources", "resourceFieldRef: {resource: limits.cpu}", ".resourceFieldRef: Forbidden: "+unknowable),
		valueFrom("files", "fileKeyRef: {volumeName: v, path: p, key: k}", ".fileKeyRef: Forbidden: "+unknowable),
		valueFrom("no key", "secretKeyRef: {name: s}", ".secretKeyRef.key: Required value: must name a key of the object"),
		valueFrom("bad key", "secretKeyRef: {name: s, key: a/b}", `.secretKeyRef.key: Invalid value: "a/b": `+badKey),
		valueFrom("no field", "fieldRef: {}", `.fieldRef.fieldPath: Unsupported value: "": `+fields),
		valueFrom("a field of the status", "fieldRef: {fieldPath: status.podIP}", `.fieldRef.fieldPath: Unsupported value: "status.podIP": `+fields),
		valueFrom("another version", "fieldRef: {fieldPath: metadata.name, apiVersion: v2}", `.fieldRef.apiVersion: Unsupported value: "v2": supported values: "v1"`),
		podEnv("no container", "path: e", ".container: Required value: must name a container of the pod"),
		podEnv("bad container", "path: e, container: Main", `.container: Invalid value: "Main": `+badLabel),
		podEnv("unknown field", "path: e, container: c, envFrom: []", ".envFrom: Forbidden: unknown field; known are container, format, mode, path"),
		refuse("env and a key at one path", "[{secret: {name: s, items: [{key: k, path: e}]}}, {env: {path: e}}, {podEnv: {path: e/f, container: c}}]",
			`[sources[1].env.path: Invalid value: "e": conflicting duplicate paths: also the path of sources[0].secret.items[0].path`+
				`, sources[2].podEnv.path: Invalid value: "e/f": must not lie below "e", which sources[0].secret.items[0].path makes a file]`),
		{"versions without a path", "[{versions: {}}]", "sources[0].versions.path: Required value: must be a relative path"},
		{"versions twice", "[{versions: {path: a}}, {versions: {path: b}}]", "sources[1].versions: Forbidden: must not be there twice: sources[0].versions is the same file"},
		{"versions at a key's path", "[{secret: {name: s, items: [{key: k, path: v}]}}, {versions: {path: v}}]", `sources[1].versions.path: Invalid value: "v": conflicting duplicate paths: also the path of sources[0].secret.items[0].path`},
		join("nothing", "", "[sources[0].join.path: Required value: must be a relative path, sources[0].join.sources: Required value: must have at least one source]"),
		join("no key", "path: p, sources: [{secret: {name: s}}]", "sources[0].join.sources[0].secret.key: Required value: must name a key of the object"),
		join("two objects", "path: p, sources: [{secret: {name: s, key: k}, configMap: {name: c, key: k}}]", `sources[0].join.sources[0]: Invalid value: "object": must have one of configMap, secret, not several`),
		join("another source", "path: p, sources: [{volume: {name: v}}]", "sources[0].join.sources[0].volume: Forbidden: unknown field; known are configMap, secret"),
		join("items", "path: p, sources: [{secret: {name: s, items: []}}]", "[sources[0].join.sources[0].secret.items: Forbidden: unknown field; known are canary, key, name, namespace, optional, sources[0].join.sources[0].secret.key: Required value: must name a key of the object]"),
		refuse("a joined file and a key at one path", "[{join: {path: e, sources: [{secret: {name: s, key: k}}]}}, {secret: {name: s, items: [{key: k, path: e}]}}]",
			`sources[1].secret.items[0].path: Invalid value: "e": conflicting duplicate paths: also the path of sources[0].join.path`),
		env("a long value is not repeated", "path: e, env: [{name: A, value: ["+strings.Repeat("s3cret", 20)+"]}]", `.env[0].value: Invalid value: "array": must be a string (quote it)`),
	}
}
