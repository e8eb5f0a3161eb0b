package volume

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

type expensive struct {
	name, sources string
	// ok means that the sources are valid, only many.
	ok bool
}

// expensiveCases returns attributes of nearly the largest size that try to cost much more than their size.
func expensiveCases() []expensive {
	fill := func(head, repeat, tail string) string {
		return head + strings.Repeat(repeat, (MaxAttributesSize-200-len(head)-len(tail))/len(repeat)) + tail
	}
	// Every path is below all earlier ones.
	var ladder strings.Builder
	for i := 1; ladder.Len() < MaxAttributesSize-2000; i++ {
		fmt.Fprintf(&ladder, "{key: k, path: %sa},", strings.Repeat("a/", i))
	}
	// Paths of the largest length with as many directories as possible.
	var deep strings.Builder
	for i := range 15 {
		fmt.Fprintf(&deep, "{key: k, path: %d%s},", i, strings.Repeat("/a", 2046))
	}
	bomb := "- &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += fmt.Sprintf("- &%c [%s]\n", c, strings.Repeat(fmt.Sprintf("*%c,", c-1), 9))
	}
	return []expensive{
		{name: "aliases of aliases", sources: bomb},
		{name: "aliases of one source", sources: fill("[&a {secret: {name: s}},", "*a,", "]")},
		{name: "aliases of a long string", sources: fill("[{secret: {name: &a "+strings.Repeat("x", MaxAttributesSize/2)+"}},", "*a,", "]")},
		{name: "errors", sources: fill("[{secret: {name: s, items: [", "{},", "]}}]")},
		{name: "unknown fields", sources: fill("[{", "a,", "}]")},
		{name: "paths below paths", sources: "[{secret: {name: s, items: [" + ladder.String() + "]}}]"},
		{name: "deep directories", sources: "[{secret: {name: s, items: [" + deep.String() + "]}}]", ok: true},
		{name: "sources", sources: fill("[", "{secret: {name: s}},", "]"), ok: true},
		{name: "lists in lists", sources: fill("", "[", "")},
		{name: "closed lists in lists", sources: strings.Repeat("[", 9999) + strings.Repeat("]", 9999)},
		{name: "block lists in lists", sources: fill("", "- ", "")},
		{name: "mappings in mappings", sources: fill("", "{a: ", "")},
		{name: "complex keys", sources: fill("", "? ", "")},
		{name: "comments", sources: fill("", "#\n", "[]")},
		{name: "comments of elements", sources: fill("", "- #\n#\n", "")},
		{name: "line ends", sources: fill("", "\n", "[]")},
		{name: "a long number", sources: fill("[", "9", "]")},
		{name: "a long name", sources: fill("[{secret: {name: ", "n", "}}]")},
		{name: "a long key", sources: fill("[{secret: {name: s, items: [{path: p, key: ", "-", "}]}}]")},
		{name: "a long field name", sources: fill("[{", "n", ": 1}]")},
		{name: "unprintable field names", sources: fill("[{", `"\e`+strings.Repeat(`\e`, 40)+`",`, "}]")},
	}
}

// No attributes cost much more time or memory than their size suggests, and no error text is longer than they are.
func TestParseIsBounded(t *testing.T) {
	// The time limit is generous, for a busy machine and the race detector. The slowest case takes a tenth of a second on an idle one.
	const maxTime, maxMemory = time.Minute, 64 << 20
	for _, c := range expensiveCases() {
		t.Run(c.name, func(t *testing.T) {
			attributes := map[string]string{"sources": c.sources}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, err := Parse(attributes, testPod())
			text := ""
			if err != nil {
				text = err.Error()
			}
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			t.Logf("%d bytes took %v and %d KiB, error of %d bytes", len(c.sources), took, (after.TotalAlloc-before.TotalAlloc)>>10, len(text))
			if took > maxTime {
				t.Errorf("took %v, more than %v", took, maxTime)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > maxMemory {
				t.Errorf("allocated %d MiB, more than %d", n>>20, maxMemory>>20)
			}
			switch {
			case c.ok && err != nil:
				t.Errorf("refused: %.300s", text)
			case !c.ok && err == nil:
				t.Error("accepted")
			case !c.ok:
				checkErrorText(t, err)
			}
		})
	}
}

// Errors that are not listed are counted.
func TestParseListsTheFirstErrors(t *testing.T) {
	for _, n := range []int{maxErrors, maxErrors + 1, maxErrors + 200} {
		_, err := Parse(map[string]string{"sources": "[" + strings.Repeat("{},", n) + "]"}, testPod())
		if err == nil {
			t.Fatal("no error")
		}
		text := err.Error()
		if got := strings.Count(text, "Required value"); got != maxErrors {
			t.Errorf("%d errors: %d are listed, want %d", n, got, maxErrors)
		}
		want := "]"
		if n > maxErrors {
			want = fmt.Sprintf(", and %d more]", n-maxErrors)
		}
		if !strings.HasSuffix(text, want) {
			t.Errorf("%d errors: the text ends in %q, want %q", n, text[len(text)-30:], want)
		}
	}
}

// numbered repeats a text with the numbers from 0.
func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func TestParseBoundsReferences(t *testing.T) {
	const manyReferences = "Too many: 258: a volume may name at most 256 ConfigMaps and Secrets, each counted once; show the others in another volume"
	for _, c := range []struct{ name, sources, want string }{
		{"as many references as may be", "[" + numbered(256, "{secret: {name: s%d}},") + "]", ""},
		{"more references", "[" + numbered(258, "{secret: {name: s%d}},") + "]", "sources[256].secret: " + manyReferences},
		{"more sources of one object", "[" + strings.Repeat("{secret: {name: s}},", 2000) + "]", ""},
		{"references of an env file", "[{env: {path: e, envFrom: [" + numbered(256, "{secretRef: {name: s%d}},") + "]}}]", ""},
		{"more references of an env file", "[{env: {path: e, envFrom: [" + numbered(258, "{secretRef: {name: s%d}},") + "]}}]", "sources[0].env.envFrom[256].secretRef: " + manyReferences},
		{
			"more references of files and variables",
			"[" + numbered(200, "{configMap: {name: s%d}},") + "{env: {path: e, env: [" +
				numbered(58, "{name: A, valueFrom: {secretKeyRef: {name: s%d, key: k}}},") + "]}}]",
			"sources[200].env.env[56].valueFrom.secretKeyRef: " + manyReferences,
		},
		{"many references to one object", "[{env: {path: e, envFrom: [" + strings.Repeat("{secretRef: {name: s}},", 1000) + "]}}]", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := ""
			if _, err := Parse(map[string]string{"sources": c.sources}, testPod()); err != nil {
				text = err.Error()
			}
			if text != c.want {
				t.Errorf("\ngot  %.300s\nwant %s", text, c.want)
			}
		})
	}
}

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
			if best = min(best, float64(deep)/float64(flat)); best <= 20 {
				break
			}
		}
		t.Logf("%s: paths of 1,900 elements take %.1f times as long as those of 15", strategy, best)
		if best > 20 {
			t.Errorf("%s: paths of 1,900 elements take %.1f times as long as those of 15", strategy, best)
		}
	}
}
