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
		{"a whole object", "[{configMap: {name: app}}]", Names{1, 1, names + 3, 0}},
		{"items", "[{configMap: {name: app, items: [{key: a, path: x/y}, {key: bc, path: z}]}}]", Names{1, 3, names + 3 + 1 + 3 + 2 + 1, 0}},
		{"a directory counts for the source and for each item", "[{configMap: {name: app, path: dir, items: [{key: a, path: x}, {key: b, path: z}]}}]", Names{1, 3, names + 3 + 3 + 2*2, 2 * len64("dir/")}},
		{"an object that is named twice", "[{configMap: {name: app}}, {configMap: {name: app, path: d}}]", Names{1, 2, names + 3 + 1, 0}},
		{"two kinds", "[{configMap: {name: app}}, {secret: {name: app}}]", Names{2, 2, 2 * (names + 3), 0}},
		{"join", "[{join: {path: f, sources: [{secret: {name: a, key: k}}, {secret: {name: b, key: kk}}]}}]", Names{2, 3, 1 + 2*(names+1) + 3, 0}},
		{
			"env", "[{env: {path: f, envFrom: [{prefix: P_, configMapRef: {name: a}}], env: [{name: V, value: abc}, {name: W, valueFrom: {secretKeyRef: {name: b, key: k}}}]}}]",
			Names{2, 4, 1 + 2 + 2*(names+1) + 4 + 2, 0},
		},
		{"expand", "[{expand: {path: f, configMap: {name: a, key: t}, env: [{name: V, value: abc}]}}]", Names{1, 3, 1 + names + 1 + 1 + 4, 0}},
		{"versions", "[{configMap: {name: app}}, {versions: {path: v}}]", Names{1, 2, names + 3 + 1, 0}},
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

// What AddIn counts before paths are made is what Add counts after it.
func TestNamesBeforePathsAreMade(t *testing.T) {
	source := Source{Projection: &Projection{Ref: Ref{ConfigMap, "ns", "app"}, Items: []Item{{Key: "a", Path: "x"}, {Key: "b", Path: "y/z"}}}}
	whole := Source{Projection: &Projection{Ref: Ref{ConfigMap, "ns", "app"}}}
	for _, dir := range []string{"", "some/directory"} {
		before, after := NewCount(), NewCount()
		for _, s := range []Source{source, whole} {
			before.AddIn(&s, dir)
			put := s.In(Directory{Path: dir})
			after.Add(&put)
		}
		if before.Names != after.Names {
			t.Errorf("%q: %+v before, %+v after", dir, before.Names, after.Names)
		}
	}
}

func len64(s string) int64 { return int64(len(s)) }

// longSpec has n files with paths of 3,800 bytes in elements of a given length, and as many directories for mounts beside them.
func longSpec(n, element int, strategy WriteStrategy) *Spec {
	deep := strings.Repeat("/"+strings.Repeat("a", element), 3800/(element+1))
	spec := &Spec{WriteStrategy: strategy}
	for i := range n {
		source := Source{Projection: &Projection{Ref: Ref{ConfigMap, "ns", "app"}, Items: []Item{{Key: "a", Path: "f"}}}, Field: fmt.Sprintf("sources[%d].configMap", i)}
		spec.Sources = append(spec.Sources, source.In(Directory{Path: fmt.Sprint(i, deep), Field: "path"}))
		spec.Directories = append(spec.Directories, Directory{Path: fmt.Sprint("m", i, deep), Field: "directories"})
	}
	return spec
}

// Deep paths cost no more than their length. A look-up of each parent of each path would cost the square.
func TestValidateDeepPaths(t *testing.T) {
	for _, strategy := range []WriteStrategy{WriteAtomic, WriteInPlace} {
		took := func(element int) time.Duration {
			spec := longSpec(200, element, strategy)
			began := time.Now()
			if err := spec.Validate(); err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		best := 1e9
		for range 3 {
			flat, deep := took(253), took(1)
			best = min(best, float64(deep)/float64(flat))
		}
		t.Logf("%s: paths of 1,900 elements take %.1f times as long as those of 15", strategy, best)
		if best > 20 {
			t.Errorf("%s: paths of 1,900 elements take %.1f times as long as those of 15", strategy, best)
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
