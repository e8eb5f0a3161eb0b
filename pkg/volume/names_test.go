package volume

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestNames(t *testing.T) {
	const names = 2 // the namespace "ns" of each object
	for _, test := range []struct {
		name, sources string
		want          Names
	}{
		{"a whole object", "[{configMap: {name: app}}]", Names{1, 1, names + 3}},
		{"items", "[{configMap: {name: app, items: [{key: a, path: x/y}, {key: bc, path: z}]}}]", Names{1, 3, names + 3 + 1 + 3 + 2 + 1}},
		{"a directory counts for the source and for each item", "[{configMap: {name: app, path: dir, items: [{key: a, path: x}, {key: b, path: z}]}}]", Names{1, 3, names + 3 + 3 + 2*(1+len64("dir/x"))}},
		{"an object that is named twice", "[{configMap: {name: app}}, {configMap: {name: app, path: d}}]", Names{1, 2, names + 3 + 1}},
		{"two kinds", "[{configMap: {name: app}}, {secret: {name: app}}]", Names{2, 2, 2 * (names + 3)}},
		{"join", "[{join: {path: f, sources: [{secret: {name: a, key: k}}, {secret: {name: b, key: kk}}]}}]", Names{2, 3, 1 + 2*(names+1) + 3}},
		{
			"env", "[{env: {path: f, envFrom: [{prefix: P_, configMapRef: {name: a}}], env: [{name: V, value: abc}, {name: W, valueFrom: {secretKeyRef: {name: b, key: k}}}]}}]",
			Names{2, 4, 1 + 2 + 2*(names+1) + 4 + 2},
		},
		{"expand", "[{expand: {path: f, configMap: {name: a, key: t}, env: [{name: V, value: abc}]}}]", Names{1, 3, 1 + names + 1 + 1 + 4}},
		{"versions", "[{configMap: {name: app}}, {versions: {path: v}}]", Names{1, 2, names + 3 + 1}},
	} {
		spec, err := Parse(map[string]string{"sources": test.sources, "directories": "[mnt]"}, Pod{Namespace: "ns", Name: "p", UID: "u"})
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		test.want.Items++
		test.want.Bytes += int64(len("mnt"))
		if got := spec.Names(); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

func len64(s string) int64 { return int64(len(s)) }

// deepSpec has n files, each at the bottom of 1,900 directories: their own, or common ones.
func deepSpec(n int, own bool) *Spec {
	spec := &Spec{}
	for i := range n {
		dir := "d"
		if own {
			dir = fmt.Sprint(i)
		}
		source := Source{Projection: &Projection{Ref: Ref{ConfigMap, "ns", "app"}, Items: []Item{{Key: "a", Path: fmt.Sprint("f", i)}}}, Field: fmt.Sprintf("sources[%d].configMap", i)}
		spec.Sources = append(spec.Sources, source.In(Directory{Path: dir + strings.Repeat("/a", 1900), Field: "path"}))
	}
	return spec
}

// Deep paths cost no more than their length. A look-up of each parent of each path would cost the square.
func TestValidateDeepPaths(t *testing.T) {
	for _, test := range []struct {
		name        string
		files       int
		own         bool
		strategy    WriteStrategy
		directories int
	}{
		{"one directory", 8192, false, WriteAtomic, 0},
		{"a directory each", 1000, true, WriteAtomic, 0},
		{"a directory each, and mounts below them", 1000, true, WriteInPlace, 1000},
	} {
		spec := deepSpec(test.files, test.own)
		spec.WriteStrategy = test.strategy
		for i := range test.directories {
			spec.Directories = append(spec.Directories, Directory{Path: fmt.Sprint(i) + strings.Repeat("/a", 1800) + "/m", Field: "directories"})
		}
		began := time.Now()
		if err := spec.Validate(); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: took %s", test.name, took)
		}
	}
}

// The nearest file above a path is found, whatever sorts between them.
func TestValidateFilesAbove(t *testing.T) {
	items := func(paths ...string) string {
		var all []string
		for _, path := range paths {
			all = append(all, "{key: k, path: "+path+"}")
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	for _, test := range []struct {
		paths []string
		want  string
	}{
		{[]string{"a", "a-b", "a.b/c", "ab", "b/a"}, ""},
		{[]string{"a-b", "a/b", "a"}, `items[1].path: Invalid value: "a/b": must not lie below "a", which items[2].path makes a file`},
		{[]string{"a", "a-b", "a/b/c/d"}, `items[2].path: Invalid value: "a/b/c/d": must not lie below "a", which items[0].path makes a file`},
		{[]string{"a/b/c/d", "a/b", "a/b-/c"}, `items[0].path: Invalid value: "a/b/c/d": must not lie below "a/b", which items[1].path makes a file`},
	} {
		_, err := Parse(map[string]string{"configMap": "app", "items": items(test.paths...)}, testPod())
		if got := fmt.Sprint(err); got != test.want && (test.want != "" || err != nil) {
			t.Errorf("%q: %s, want %s", test.paths, got, test.want)
		}
	}
}
