package volume

import (
	"io/fs"
	"strings"
)

// envCases returns every form of the sources that make env files.
func envCases() []accepted {
	mode := fs.FileMode(0o400)
	spec := func(source Source) Spec {
		return Spec{Sources: []Source{source}, UpdatePolicy: UpdateLive, WriteStrategy: WriteAtomic, OnDelete: DeleteKeep}
	}
	env := func(path string, env Env) Spec {
		return spec(Source{Field: "sources[0].env", Path: path, Format: EnvDotenv, Env: &env})
	}
	podEnv := func(path string, mode *fs.FileMode, format EnvFormat, container string) Spec {
		return spec(Source{Field: "sources[0].podEnv", Path: path, Mode: mode, Format: format, PodEnv: &PodEnv{container}})
	}
	sources := func(text string) map[string]string { return map[string]string{"sources": text} }
	cm := func(name string) Ref { return Ref{Kind: ConfigMap, Namespace: "ns", Name: name} }
	secret := func(name string) Ref { return Ref{Kind: Secret, Namespace: "ns", Name: name} }
	one := func(text string, v EnvVar) accepted {
		v.Name = "A"
		return accepted{
			"variable of " + text, sources("[{env: {path: e, env: [{name: A, " + text + "}]}}]"),
			env("e", Env{Vars: []EnvVar{v}}),
		}
	}
	const key = "sources[0].env.env[0].valueFrom."
	return []accepted{
		{"env of nothing", sources("[{env: {path: e}}]"), env("e", Env{})},
		{
			"env with its own mode, format and directory", sources("[{env: {path: ./d//e, mode: 0400, format: shell}}]"),
			spec(Source{Field: "sources[0].env", Path: "d/e", Mode: &mode, Format: EnvShell, Env: &Env{}}),
		},
		{
			"envFrom", sources("[{env: {path: e, format: dotenv, envFrom: [{configMapRef: {name: c}}, {prefix: P-_, secretRef: {name: s, optional: true, namespace: ns}}]}}]"),
			env("e", Env{From: []EnvFrom{
				{Ref: cm("c"), Field: "sources[0].env.envFrom[0].configMapRef"},
				{Prefix: "P-_", Ref: secret("s"), Optional: true, Field: "sources[0].env.envFrom[1].secretRef"},
			}}),
		},
		one(`value: ""`, EnvVar{}),
		one(`valueFrom: `, EnvVar{}),
		one(`value: "$(B) #x"`, EnvVar{Value: "$(B) #x"}),
		one(`value: "two\nlines"`, EnvVar{Value: "two\nlines"}),
		one("valueFrom: {configMapKeyRef: {name: c, key: .k}}", EnvVar{Key: &Reference{Ref: cm("c"), Key: ".k", Field: key + "configMapKeyRef"}}),
		one("valueFrom: {secretKeyRef: {name: s, key: k, optional: true, namespace: ns}}", EnvVar{Key: &Reference{Ref: secret("s"), Key: "k", Optional: true, Field: key + "secretKeyRef"}}),
		one("value: v, valueFrom: {secretKeyRef: {name: s, key: k}}", EnvVar{Value: "v", Key: &Reference{Ref: secret("s"), Key: "k", Field: key + "secretKeyRef"}}),
		one("valueFrom: {fieldRef: {fieldPath: metadata.name}}", EnvVar{FieldRef: PodName}),
		one("valueFrom: {fieldRef: {fieldPath: metadata.namespace}}", EnvVar{FieldRef: PodNamespace}),
		one("valueFrom: {fieldRef: {fieldPath: metadata.uid, apiVersion: v1}}", EnvVar{FieldRef: PodUID}),
		one("valueFrom: {fieldRef: {fieldPath: spec.nodeName}}", EnvVar{FieldRef: PodNodeName}),
		one(`valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName, apiVersion: ""}}`, EnvVar{FieldRef: PodServiceAccount}),
		{"a name that an env file can't hold is for the file to leave out", sources("[{env: {path: e, env: [{name: 1.b-$ (c)}]}}]"), env("e", Env{Vars: []EnvVar{{Name: "1.b-$ (c)"}}})},
		{"podEnv", sources("[{podEnv: {path: e, container: main}}]"), podEnv("e", nil, EnvDotenv, "main")},
		{"podEnv as an environment", sources("[{podEnv: {path: e, container: main, format: environ}}]"), podEnv("e", nil, EnvEnviron, "main")},
		{"podEnv with all fields", sources("[{podEnv: {path: d/e, container: main-2, mode: 0400, format: shell}}]"), podEnv("d/e", &mode, EnvShell, "main-2")},
		{
			"versions", sources("[{secret: {name: s}}, {versions: {path: .versions, mode: 0400}}]"),
			Spec{Sources: []Source{
				{Field: "sources[0].secret", Projection: &Projection{Ref: secret("s")}},
				{Field: "sources[1].versions", Path: ".versions", Mode: &mode, Versions: true},
			}, UpdatePolicy: UpdateLive, WriteStrategy: WriteAtomic, OnDelete: DeleteKeep},
		},
		{
			"join", sources("[{join: {path: d//ca.pem, mode: 0400, sources: [{configMap: {name: c, key: k}}, {secret: {name: s, key: ca.crt, optional: true, namespace: ns}}]}}]"),
			spec(Source{Field: "sources[0].join", Path: "d/ca.pem", Mode: &mode, Join: []Reference{
				{Ref: cm("c"), Key: "k", Field: "sources[0].join.sources[0].configMap"},
				{Ref: secret("s"), Key: "ca.crt", Optional: true, Field: "sources[0].join.sources[1].secret"},
			}}),
		},
	}
}

// refusedEnvCases returns what is refused in the sources that make env files.
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
		env("bad path", "path: ../e", `.path: Invalid value: "../e": must not contain ".."`),
		env("mode", "path: e, mode: 888", ".mode: Invalid value: 888: must be an integer from 0 to 511 (octal 0777)"),
		env("format", "path: e, format: json", `.format: Unsupported value: "json": supported values: "dotenv", "shell", "environ"`),
		env("empty format", `path: e, format: ""`, `.format: Unsupported value: "": supported values: "dotenv", "shell", "environ"`),
		env("unknown field", "path: e, optional: true", ".optional: Forbidden: unknown field; known are env, envFrom, format, mode, path"),
		env("envFrom as a mapping", "path: e, envFrom: {}", `.envFrom: Invalid value: "object": must be a list`),
		env("env as a mapping", "path: e, env: {A: b}", `.env: Invalid value: "object": must be a list`),
		from("nothing", "", ": Required value: "+oneRef),
		from("prefix alone", "prefix: A_", ": Required value: "+oneRef),
		from("both", "configMapRef: {name: c}, secretRef: {name: s}", `: Invalid value: "object": `+oneRef+", not several"),
		from("no name", "configMapRef: {}", ".configMapRef.name: Required value: must name a ConfigMap"),
		from("bad name", "secretRef: {name: S}", `.secretRef.name: Invalid value: "S": `+badName),
		from("another namespace", "secretRef: {name: s, namespace: platform}", `.secretRef.namespace: Invalid value: "platform": `+otherNamespace),
		from("unknown field", "secretRef: {name: s, key: k}", ".secretRef.key: Forbidden: unknown field; known are canary, name, namespace, optional"),
		from("unknown kind", "secretKeyRef: {name: s}", ".secretKeyRef: Forbidden: unknown field; known are configMapRef, prefix, secretRef"),
		from("prefix", "prefix: A=, secretRef: {name: s}", `.prefix: Invalid value: "A=": `+badVariable),
		variable("no name", "value: v", ".name: Required value: must name a variable"),
		variable("name with an equals sign", "name: A=B", `.name: Invalid value: "A=B": `+badVariable),
		variable("name with a line end", `name: "A\nB"`, `.name: Invalid value: "A\nB": `+badVariable),
		variable("name beyond ASCII", "name: größe", `.name: Invalid value: "größe": `+badVariable),
		variable("value as an integer", "name: A, value: 1", `.value: Invalid value: "number": must be a string (quote it)`),
		variable("value as a boolean", "name: A, value: true", `.value: Invalid value: "bool": must be a string (quote it)`),
		valueFrom("nothing", "", ": Required value: "+oneValue),
		valueFrom("two", "fieldRef: {fieldPath: metadata.name}, secretKeyRef: {name: s, key: k}", `: Invalid value: "object": `+oneValue+", not several"),
		valueFrom("resources", "resourceFieldRef: {resource: limits.cpu}", ".resourceFieldRef: Forbidden: "+unknowable),
		valueFrom("files", "fileKeyRef: {volumeName: v, path: p, key: k}", ".fileKeyRef: Forbidden: "+unknowable),
		valueFrom("no key", "secretKeyRef: {name: s}", ".secretKeyRef.key: Required value: must name a key of the object"),
		valueFrom("no name of an object", "configMapKeyRef: {key: k}", ".configMapKeyRef.name: Required value: must name a ConfigMap"),
		valueFrom("bad key", "secretKeyRef: {name: s, key: a/b}", `.secretKeyRef.key: Invalid value: "a/b": `+badKey),
		valueFrom("no field", "fieldRef: {}", `.fieldRef.fieldPath: Unsupported value: "": `+fields),
		valueFrom("a field of the status", "fieldRef: {fieldPath: status.podIP}", `.fieldRef.fieldPath: Unsupported value: "status.podIP": `+fields),
		valueFrom("another version", "fieldRef: {fieldPath: metadata.name, apiVersion: v2}", `.fieldRef.apiVersion: Unsupported value: "v2": supported values: "v1"`),
		podEnv("no container", "path: e", ".container: Required value: must name a container of the pod"),
		podEnv("bad container", "path: e, container: Main", `.container: Invalid value: "Main": `+badLabel),
		podEnv("no path", "container: c", ".path: Required value: must be a relative path"),
		podEnv("unknown field", "path: e, container: c, envFrom: []", ".envFrom: Forbidden: unknown field; known are container, format, mode, path"),
		{
			"env and a key at one path", "[{secret: {name: s, items: [{key: k, path: e}]}}, {env: {path: e}}, {podEnv: {path: e/f, container: c}}]",
			`[sources[1].env.path: Invalid value: "e": conflicting duplicate paths: also the path of sources[0].secret.items[0].path` +
				`, sources[2].podEnv.path: Invalid value: "e/f": must not lie below "e", which sources[0].secret.items[0].path makes a file]`,
		},
		{"versions without a path", "[{versions: {}}]", "sources[0].versions.path: Required value: must be a relative path"},
		{"versions twice", "[{versions: {path: a}}, {versions: {path: b}}]", "sources[1].versions: Forbidden: must not be there twice: sources[0].versions is the same file"},
		{"versions at a key's path", "[{secret: {name: s, items: [{key: k, path: v}]}}, {versions: {path: v}}]", `sources[1].versions.path: Invalid value: "v": conflicting duplicate paths: also the path of sources[0].secret.items[0].path`},
		join("nothing", "", "[sources[0].join.path: Required value: must be a relative path, sources[0].join.sources: Required value: must have at least one source]"),
		join("no key", "path: p, sources: [{secret: {name: s}}]", "sources[0].join.sources[0].secret.key: Required value: must name a key of the object"),
		join("two objects", "path: p, sources: [{secret: {name: s, key: k}, configMap: {name: c, key: k}}]", `sources[0].join.sources[0]: Invalid value: "object": must have one of configMap, secret, not several`),
		join("another source", "path: p, sources: [{volume: {name: v}}]", "sources[0].join.sources[0].volume: Forbidden: unknown field; known are configMap, secret"),
		join("items", "path: p, sources: [{secret: {name: s, items: []}}]", "[sources[0].join.sources[0].secret.items: Forbidden: unknown field; known are canary, key, name, namespace, optional, sources[0].join.sources[0].secret.key: Required value: must name a key of the object]"),
		join("a path below its own", "path: ../p, sources: [{secret: {name: s, key: k}}]", `sources[0].join.path: Invalid value: "../p": must not contain ".."`),
		{
			"a joined file and a key at one path", "[{join: {path: e, sources: [{secret: {name: s, key: k}}]}}, {secret: {name: s, items: [{key: k, path: e}]}}]",
			`sources[1].secret.items[0].path: Invalid value: "e": conflicting duplicate paths: also the path of sources[0].join.path`,
		},
		env("a long value is not repeated", "path: e, env: [{name: A, value: ["+strings.Repeat("s3cret", 20)+"]}]", `.env[0].value: Invalid value: "array": must be a string (quote it)`),
	}
}
