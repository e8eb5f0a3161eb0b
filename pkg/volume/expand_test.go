package volume

import (
	"fmt"
	"io/fs"
	"reflect"
	"strings"
	"testing"
)

// expandCases returns every form of expand, and of a directory for a source.
func expandCases() []accepted {
	mode := fs.FileMode(0o400)
	spec := func(sources ...Source) Spec {
		return Spec{Sources: sources, UpdatePolicy: UpdateLive, WriteStrategy: WriteAtomic, OnDelete: DeleteKeep}
	}
	sources := func(text string) map[string]string { return map[string]string{"sources": text} }
	cm := func(name string) Ref { return Ref{Kind: ConfigMap, Namespace: "ns", Name: name} }
	secret := func(name string) Ref { return Ref{Kind: Secret, Namespace: "ns", Name: name} }
	const at = "sources[0].expand"
	below := func(i int, kind, dir string) Directory {
		return Directory{Path: dir, Field: fmt.Sprintf("sources[%d].%s.path", i, kind)}
	}
	return []accepted{
		{
			"expand", sources(`[{expand: {path: d//app.yaml, mode: 0400, configMap: {name: c, key: app.yaml}, envFrom: [{prefix: P_, secretRef: {name: s, optional: true}}],
				env: [{name: A, value: x}, {name: B, value: "$(A)", escape: none}, {name: C, valueFrom: {secretKeyRef: {name: s, key: k}}, escape: json}, {name: D.-, valueFrom: {fieldRef: {fieldPath: metadata.name}}, escape: url}]}}]`),
			spec(Source{Field: at, Path: "d/app.yaml", Mode: &mode, Expand: &Expand{
				Text: Reference{Ref: cm("c"), Key: "app.yaml", Field: at + ".configMap"},
				Env: Env{From: []EnvFrom{{Prefix: "P_", Ref: secret("s"), Optional: true, Field: at + ".envFrom[0].secretRef"}}, Vars: []EnvVar{
					{Name: "A", Value: "x"},
					{Name: "B", Value: "$(A)", Escape: EscapeNone},
					{Name: "C", Key: &Reference{Ref: secret("s"), Key: "k", Field: at + ".env[2].valueFrom.secretKeyRef"}, Escape: EscapeJSON},
					{Name: "D.-", FieldRef: PodName, Escape: EscapeURL},
				}},
			}}),
		},
		{
			"expand of a Secret's text", sources("[{expand: {path: p, secret: {name: s, key: k, namespace: ns, optional: true}, env: [{name: A}]}}]"),
			spec(Source{Field: at, Path: "p", Expand: &Expand{
				Text: Reference{Ref: secret("s"), Key: "k", Optional: true, Field: at + ".secret"}, Env: Env{Vars: []EnvVar{{Name: "A"}}},
			}}),
		},
		{
			"expand with one variable and one object", sources("[{expand: {path: p, configMap: {name: c, key: k}, envFrom: [{secretRef: {name: s}}], env: [{name: A}]}}]"),
			spec(Source{Field: at, Path: "p", Expand: &Expand{
				Text: Reference{Ref: cm("c"), Key: "k", Field: at + ".configMap"},
				Env:  Env{From: []EnvFrom{{Ref: secret("s"), Field: at + ".envFrom[0].secretRef"}}, Vars: []EnvVar{{Name: "A"}}},
			}}),
		},
		{
			"directories of sources", sources("[{configMap: {name: c, path: ./rules.d/}}, {secret: {name: s, path: a/b, items: [{key: k, path: ./x//y}]}}, {volume: {name: v, path: rules.d}}, {secret: {name: t, path: rules.d}}]"),
			spec(
				Source{Field: "sources[0].configMap", Below: below(0, "configMap", "rules.d"), Projection: &Projection{Ref: cm("c")}},
				Source{Field: "sources[1].secret", Below: below(1, "secret", "a/b"), Projection: &Projection{Ref: secret("s"), Items: []Item{{Key: "k", Path: "a/b/x/y"}}}},
				Source{Field: "sources[2].volume", Below: below(2, "volume", "rules.d"), Volume: "v"},
				Source{Field: "sources[3].secret", Below: below(3, "secret", "rules.d"), Projection: &Projection{Ref: secret("t")}},
			),
		},
		{
			"the longest directory of keys", sources("[{secret: {name: s, path: " + longPath(4096-254) + "}}]"),
			spec(Source{Field: "sources[0].secret", Below: below(0, "secret", longPath(4096-254)), Projection: &Projection{Ref: secret("s")}}),
		},
	}
}

// longPath returns a clean path of n bytes.
func longPath(n int) string {
	return (strings.Repeat("0123456789abcde/", n/16) + strings.Repeat("f", 16))[:n-1] + "g"
}

// refusedExpandCases returns what is refused in expand, and in a directory for a source.
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
		expand("no variable", "path: p, secret: {name: s, key: k}, env: []", at+".env: Required value: must have at least one variable, or envFrom an object"),
		expand("no text", "path: p", "["+at+": Required value: must have one of configMap, secret, "+at+".env: Required value: must have at least one variable, or envFrom an object]"),
		expand("two texts", "path: p, secret: {name: s, key: k}, configMap: {name: c, key: k}, env: [{name: A}]", at+`: Invalid value: "object": must have one of configMap, secret, not several`),
		expand("no key of the text", "path: p, configMap: {name: c}, env: [{name: A}]", at+".configMap.key: Required value: must name a key of the object"),
		expand("no name of the text", "path: p, configMap: {key: c}, env: [{name: A}]", at+".configMap.name: Required value: must name a ConfigMap"),
		expand("another namespace", "path: p, configMap: {name: c, key: k, namespace: other}, env: [{name: A}]", at+`.configMap.namespace: Invalid value: "other": `+otherNamespace),
		expand("a format", "path: p, configMap: {name: c, key: k}, env: [{name: A}], format: shell", at+".format: Forbidden: "+known),
		expand("a text in the attributes", "path: p, configMap: {name: c, key: k}, env: [{name: A}], value: x", at+".value: Forbidden: "+known),
		expand("a path below its own", "path: ../p, configMap: {name: c, key: k}, env: [{name: A}]", at+`.path: Invalid value: "../p": must not contain ".."`),
		expand("a mode", "path: p, mode: 512, configMap: {name: c, key: k}, env: [{name: A}]", at+".mode: Invalid value: 512: must be an integer from 0 to 511 (octal 0777)"),
		expand("a prefix", `path: p, configMap: {name: c, key: k}, envFrom: [{prefix: "$(", secretRef: {name: s}}]`, at+`.envFrom[0].prefix: Invalid value: "$(": `+reference),
		expand("an escape of a whole object", "path: p, configMap: {name: c, key: k}, envFrom: [{escape: json, secretRef: {name: s}}]", at+".envFrom[0].escape: Forbidden: unknown field; known are configMapRef, prefix, secretRef"),
		variable("no name", "value: x", ".name: Required value: must name a variable"),
		variable("a name that ends the reference", `name: "A)"`, `.name: Invalid value: "A)": `+reference),
		variable("a name that begins a reference", "name: A$(", `.name: Invalid value: "A$(": `+reference),
		variable("an unknown escape", "name: A, escape: yaml", `.escape: Unsupported value: "yaml": supported values: "json", "url", "none"`),
		variable("an empty escape", `name: A, escape: ""`, `.escape: Unsupported value: "": supported values: "json", "url", "none"`),
		variable("a value that a volume can't know", "name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu}}", ".valueFrom.resourceFieldRef: Forbidden: a volume can't know its value; set it in the container's own env"),
		{"expand: an escape in an env file", "[{env: {path: e, env: [{name: A, escape: json}]}}]", "sources[0].env.env[0].escape: Forbidden: must not be set in an env file, whose format says how values are quoted; only expand has it"},
		{
			"expand: a key at the same path", "[{expand: {path: e, secret: {name: s, key: k}, env: [{name: A}]}}, {secret: {name: s, items: [{key: k, path: e}]}}]",
			`sources[1].secret.items[0].path: Invalid value: "e": conflicting duplicate paths: also the path of sources[0].expand.path`,
		},
		dir("empty", `""`, "Required value: must be a relative path"),
		dir("the volume itself", "./", `Invalid value: "./": must be a directory in the volume; leave the field out for the volume itself`),
		dir("out of the volume", "a/../..", `Invalid value: "a/../..": must not contain ".."`),
		dir("absolute", "/rules.d", `Invalid value: "/rules.d": must be relative`),
		dir("the writer's own", "..data", `Invalid value: "..data": must not start with ".."`),
		dir("too long for keys", longPath(4096-253), "Invalid value: "+long+`(3844 bytes)": `+length),
		{"directory: of a volume", "[{volume: {name: v, path: ..}}]", `sources[0].volume.path: Invalid value: "..": must not contain ".."`},
		{"directory: in the short form", "[{volume: {name: v, path: [a]}}]", `sources[0].volume.path: Invalid value: "array": must be a string (quote it)`},
		{
			"directory: too long for an item", "[{secret: {name: s, path: " + longPath(2048) + ", items: [{key: k, path: " + longPath(2048) + "}]}}]",
			"sources[0].secret.items[0].path: Invalid value: " + long + `(4097 bytes)": ` + length,
		},
		{
			"directory: a file there", "[{secret: {name: s, items: [{key: k, path: rules.d}]}}, {configMap: {name: c, path: rules.d/x}}]",
			`sources[1].configMap.path: Invalid value: "rules.d/x/": must not lie below "rules.d", which sources[0].secret.items[0].path makes a file`,
		},
		{
			"directory: an item there", "[{secret: {name: s, path: d, items: [{key: k, path: x}]}}, {configMap: {name: c, items: [{key: k, path: d/x}]}}]",
			`sources[1].configMap.items[0].path: Invalid value: "d/x": conflicting duplicate paths: also the path of sources[0].secret.items[0].path`,
		},
	}
}

// Mounts below a volume conflict with the directories of sources, also if their keys are not known.
func TestDirectoriesOfSources(t *testing.T) {
	for _, test := range []struct {
		strategy, directories string
		root, inner           []string
		refused               string
	}{
		{"Atomic", "[tls]", []string{"tls"}, nil, ""},
		{"Atomic", "[rules.d/x]", nil, nil, `directories[0]: Invalid value: "rules.d/x": must not be "rules.d" or below it, as the directory "rules.d" of sources[0].configMap.path is: mount elsewhere, or map the key to another path`},
		{"InPlace", "[rules.d/x, tls]", []string{"tls"}, []string{"rules.d/x"}, ""},
		{"InPlace", "[rules.d]", nil, nil, `directories[0]: Invalid value: "rules.d": must not hide the directory "rules.d" of sources[0].configMap.path: mount elsewhere, or map the key to another path`},
	} {
		spec, err := Parse(map[string]string{"sources": "[{configMap: {name: c, path: rules.d}}]", "directories": test.directories, "writeStrategy": test.strategy}, testPod())
		if test.refused != "" || err != nil {
			checkError(t, err, test.refused)
			continue
		}
		if root, inner := spec.MountPoints(); !reflect.DeepEqual(root, test.root) || !reflect.DeepEqual(inner, test.inner) {
			t.Errorf("%s %s: got %q and %q", test.strategy, test.directories, root, inner)
		}
	}
}

// checkExpand checks the properties of every text.
func checkExpand(t *testing.T, s *Source) {
	t.Helper()
	e := s.Expand
	if e.Text.Ref.Name == "" || e.Text.Key == "" || e.Text.Field == "" || len(e.Env.From)+len(e.Env.Vars) == 0 {
		t.Errorf("an expand of nothing: %+v", *e)
	}
	if uses := s.References(); !reflect.DeepEqual(uses[0], e.Text) || len(uses) != 1+len(e.Env.References()) {
		t.Errorf("the references of %+v are %+v", *e, uses)
	}
	for _, from := range e.Env.From {
		if strings.ContainsAny(from.Prefix, "$()") {
			t.Errorf("prefix %q", from.Prefix)
		}
	}
	for _, v := range e.Env.Vars {
		if v.Name == "" || strings.ContainsAny(v.Name, "$()") || v.Escape != "" && v.Escape != EscapeNone && v.Escape != EscapeJSON && v.Escape != EscapeURL {
			t.Errorf("variable %+v", v)
		}
	}
}
