package volume

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
)

func testPod() Pod {
	return Pod{Namespace: "ns", Name: "web-0", UID: "8f7e", ServiceAccount: "web"}
}

type accepted struct {
	name       string
	attributes map[string]string
	want       Spec
}

func accept(name string, attributes map[string]string, want Spec) accepted {
	return accepted{name, attributes, want}
}

func liveSpec(sources ...Source) Spec {
	return Spec{Sources: sources, UpdatePolicy: UpdateLive, WriteStrategy: WriteAtomic, OnDelete: DeleteKeep}
}

func listing(text string) map[string]string { return map[string]string{"sources": text} }

func configMapRef(name string) Ref { return Ref{Kind: ConfigMap, Namespace: "ns", Name: name} }
func secretRef(name string) Ref    { return Ref{Kind: Secret, Namespace: "ns", Name: name} }

func acceptedCases() []accepted {
	mode := func(m fs.FileMode) *fs.FileMode { return &m }
	short := func(kind Kind, name string) Source {
		field := "configMap"
		if kind == Secret {
			field = "secret"
		}
		return Source{Projection: &Projection{Ref: Ref{Kind: kind, Namespace: "ns", Name: name}}, Field: field}
	}
	listed := func(i int, kind Kind, name string, items ...Item) Source {
		s := short(kind, name)
		s.Field = fmt.Sprintf("sources[%d].%s", i, s.Field)
		s.Projection.Items = items
		return s
	}
	with := func(change func(*Spec)) Spec {
		s := liveSpec(short(Secret, "db"))
		change(&s)
		return s
	}
	id := func(n int64) *int64 { return &n }
	withDefaultMode := func(m fs.FileMode, s Spec) Spec {
		s.DefaultMode = &m
		return s
	}
	optional := func(s Source) Source {
		s.Projection.Optional = true
		return s
	}
	twoSources := liveSpec(
		listed(0, ConfigMap, "app", Item{Key: "app.yaml", Path: "conf/app.yaml", Mode: mode(0o440)}, Item{Key: "b", Path: "b"}),
		optional(listed(1, Secret, "db")),
	)
	oneItem := func(item Item) Spec { return liveSpec(listed(0, Secret, "s", item)) }
	oneMode := func(m *fs.FileMode) Spec { return oneItem(Item{Key: "k", Path: "k", Mode: m}) }

	return []accepted{
		{"short ConfigMap", map[string]string{"configMap": "app"}, liveSpec(short(ConfigMap, "app"))},
		{"longest name", map[string]string{"secret": strings.Repeat("n", 253)}, liveSpec(short(Secret, strings.Repeat("n", 253)))},
		{"owner and group", map[string]string{"secret": "db", "uid": "0", "gid": "2147483647"}, with(func(s *Spec) { s.UID, s.GID = id(0), id(2147483647) })},
		{"spread that opts out", map[string]string{"secret": "db", "spread": "0s"}, with(func(s *Spec) { s.Spread = 0 })},
		{"the shortest spread", map[string]string{"secret": "db", "spread": "1s"}, with(func(s *Spec) { s.Spread = time.Second })},
		{"the longest spread", map[string]string{"secret": "db", "spread": "1h"}, with(func(s *Spec) { s.Spread = time.Hour })},
		{"pinned", map[string]string{"secret": "db", "updatePolicy": "Pinned"}, with(func(s *Spec) { s.UpdatePolicy = UpdatePinned })},
		{"remove what is deleted", map[string]string{"secret": "db", "onDelete": "Remove"}, with(func(s *Spec) { s.OnDelete = DeleteRemove })},
		{"written in place", map[string]string{"secret": "db", "writeStrategy": "InPlace"}, with(func(s *Spec) { s.WriteStrategy = WriteInPlace })},
		{"own namespace", map[string]string{"secret": "db", "namespace": "ns"}, liveSpec(short(Secret, "db"))},
		{"short volume", map[string]string{"volume": "settings", "uid": "0"}, with(func(s *Spec) { s.Sources, s.UID = []Source{{Volume: "settings", Field: "volume"}}, id(0) })},
		accept("volumes in sources", listing("[{volume: {name: a}}, {secret: {name: s}}, {volume: {name: b-0}}]"),
			liveSpec(Source{Volume: "a", Field: "sources[0].volume"}, listed(1, Secret, "s"), Source{Volume: "b-0", Field: "sources[2].volume"})),
		{"optional", map[string]string{"secret": "db", "optional": "true"}, liveSpec(optional(short(Secret, "db")))},
		{"default mode of nothing", map[string]string{"secret": "db", "defaultMode": "0000"}, withDefaultMode(0, liveSpec(short(Secret, "db")))},
		accept("the kubelet's keys are passed over",
			map[string]string{
				"secret": "db", "csi.storage.k8s.io/pod.name": "web-0", "csi.storage.k8s.io/ephemeral": "true",
				"csi.storage.k8s.io/serviceAccount.tokens": strings.Repeat("t", MaxAttributesSize),
			},
			liveSpec(short(Secret, "db"))),
		accept("short form with items, and users of them",
			map[string]string{"configMap": "app", "items": "- {key: a, path: x/a, mode: 0400, user: 0}\n- {key: b, path: b, user: 2147483647}\n- {key: c, path: c, user: null}\n"},
			liveSpec(Source{Field: "configMap", Projection: &Projection{
				Ref:   configMapRef("app"),
				Items: []Item{{Key: "a", Path: "x/a", Mode: mode(0o400), User: id(0)}, {Key: "b", Path: "b", User: id(2147483647)}, {Key: "c", Path: "c"}},
			}})),
		{"empty items mean every key", map[string]string{"secret": "s", "items": "[]"}, liveSpec(short(Secret, "s"))},
		accept("sources in block YAML",
			listing("- configMap:\n    name: app\n    items:\n    - key: app.yaml\n      path: conf/app.yaml\n      mode: 0440\n    - key: b\n      path: b\n- secret:\n    name: db\n    optional: true\n"),
			twoSources),
		accept("sources in JSON indented by tabs",
			listing("[\n\t{\n\t\t\"configMap\": {\n\t\t\t\"name\": \"app\",\n\t\t\t\"items\": [{\"key\": \"app.yaml\", \"path\": \"conf/app.yaml\", \"mode\": 288},\n\t\t\t\t{\"key\": \"b\", \"path\": \"b\"}]\n\t\t}\n\t},\n\t{\"secret\": {\"name\": \"db\", \"optional\": true}}\n]\n"),
			twoSources),
		{"with comments, a document start and an end", listing("# both\n---\n- secret: {name: s} # a secret\n...\n"), liveSpec(listed(0, Secret, "s"))},
		{"null is not given", listing("- secret: {name: s, namespace: ~, optional: null, items: }\n  configMap:\n"), liveSpec(listed(0, Secret, "s"))},
		{"quoted number as a name", listing(`[{secret: {name: "123"}}]`), liveSpec(listed(0, Secret, "123"))},
		{"as kubectl reads YAML 1.1's words", listing(`[{secret: {name: s, optional: yes}}]`), liveSpec(optional(listed(0, Secret, "s")))},
		{"with tags", listing(`!mine [!!map {secret: {name: !!str 7}}]`), liveSpec(listed(0, Secret, "7"))},
		{"with a merged mapping", listing(`[{secret: {name: s, <<: {optional: true}}}]`), liveSpec(optional(listed(0, Secret, "s")))},
		{"mode with a fraction of zero", listing(`[{secret: {name: s, items: [{key: k, path: k, mode: 288.0}]}}]`), oneMode(mode(0o440))},
		{"an anchor that nothing uses", listing(`[&a {secret: {name: s}}]`), liveSpec(listed(0, Secret, "s"))},
		accept("one object twice",
			listing(`[{secret: {name: s}}, {configMap: {name: s}}, {secret: {name: s, items: [{key: k, path: other}]}}]`),
			liveSpec(listed(0, Secret, "s"), listed(1, ConfigMap, "s"), listed(2, Secret, "s", Item{Key: "k", Path: "other"}))),
		accept("paths that share directories",
			listing(`[{secret: {name: s, items: [{key: k, path: d/e/a}, {key: k, path: d/e/b}, {key: k, path: d/c}, {key: k, path: d.x}, {key: k, path: a}, {key: k, path: a-b}, {key: k, path: ab}, {key: k, path: b/a}]}}]`),
			liveSpec(listed(0, Secret, "s", Item{Key: "k", Path: "d/e/a"}, Item{Key: "k", Path: "d/e/b"}, Item{Key: "k", Path: "d/c"}, Item{Key: "k", Path: "d.x"},
				Item{Key: "k", Path: "a"}, Item{Key: "k", Path: "a-b"}, Item{Key: "k", Path: "ab"}, Item{Key: "k", Path: "b/a"}))),
		{"unclean path", listing(`[{secret: {name: s, items: [{key: k, path: ".//a/./b//c"}]}}]`), oneItem(Item{Key: "k", Path: "a/b/c"})},
		{"path with blanks and beyond ASCII", listing(`[{secret: {name: s, items: [{key: k, path: "größe 1/ü"}]}}]`), oneItem(Item{Key: "k", Path: "größe 1/ü"})},
		{"key with every sort of character", listing(`[{secret: {name: s, items: [{key: .A-z_0.9, path: k}]}}]`), oneItem(Item{Key: ".A-z_0.9", Path: "k"})},
		{"mode in YAML 1.2's octal", listing(`[{secret: {name: s, items: [{key: k, path: k, mode: 0o440}]}}]`), oneMode(mode(0o440))},
		{"mode as an octal string", listing(`[{secret: {name: s, items: [{key: k, path: k, mode: "0440"}]}}]`), oneMode(mode(0o440))},
		{"mode 0", listing(`[{secret: {name: s, items: [{key: k, path: k, mode: 0}]}}]`), oneMode(mode(0))},
		{"default mode beside sources", map[string]string{"sources": `[{secret: {name: s}}]`, "defaultMode": "0440"}, withDefaultMode(0o440, liveSpec(listed(0, Secret, "s")))},
	}
}

func TestParseAccepts(t *testing.T) {
	for _, c := range slices.Concat(acceptedCases(), envCases(), expandCases()) {
		t.Run(c.name, func(t *testing.T) {
			before := maps.Clone(c.attributes)
			got := parsed(t, c.attributes)
			expect.Equal(t, "the spec", *got, c.want)
			checkSpec(t, got)
			expect.Equal(t, "the argument", c.attributes, before)
		})
	}
}

// Attributes of exactly the allowed size are parsed. With one byte more they are refused before anything else.
func TestParseSizeLimit(t *testing.T) {
	const sources, tooLong = `[{secret: {name: s}}] #`, "volumeAttributes: Too long: may not be more than 65536 bytes"
	attributes := map[string]string{"defaultMode": "0400", "csi.storage.k8s.io/pod.name": "not counted"}
	attributes["sources"] = sources + strings.Repeat("x", MaxAttributesSize-len("defaultMode0400sources"+sources))
	if spec, err := Parse(attributes, testPod()); err != nil || len(spec.Sources) != 1 {
		t.Errorf("of the largest size: got %+v, %v", spec, err)
	}
	attributes["sources"] += "x"
	_, err := Parse(attributes, testPod())
	checkError(t, err, tooLong)
	// Names count too, and nothing else is checked.
	_, err = Parse(map[string]string{"secret": "s", strings.Repeat("n", MaxAttributesSize): ""}, testPod())
	checkError(t, err, tooLong)
}

// parsed parses what must be valid.
func parsed(t testing.TB, attributes map[string]string, options ...Option) *Spec {
	t.Helper()
	t.Logf("attributes %.300q", attributes)
	return must.Get(Parse(attributes, testPod(), options...))(t)
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %s", want)
	}
	expect.Equal(t, "the error", err.Error(), want)
}

// TestDefaultSpread: the default applies to volumes without the attribute that follow changes.
func TestDefaultSpread(t *testing.T) {
	for want, attributes := range map[time.Duration]map[string]string{
		5 * time.Minute: {"secret": "db"},
		time.Minute:     {"secret": "db", "spread": "1m"},
		0:               {"secret": "db", "spread": "0s"},
	} {
		expect.Equal(t, fmt.Sprint(attributes), parsed(t, attributes, DefaultSpread(5*time.Minute)).Spread, want)
	}
	expect.Equal(t, "Pinned", parsed(t, map[string]string{"secret": "db", "updatePolicy": "Pinned"}, DefaultSpread(5*time.Minute)).Spread, 0)
}

// table has the documented fields of some objects, from a table or a list of docs/attributes.md.
type table struct {
	// at is the place of these objects, with [] for each element of a list. "" stands for the attributes themselves.
	at     []string
	fields []documented
}

type documented struct{ name, value, byDefault string }

// documentedTables returns the tables and lists of docs/attributes.md.
func documentedTables(t *testing.T) []table {
	t.Helper()
	text := must.Get(os.ReadFile("../../docs/attributes.md"))(t)
	var tables []table
	for line := range strings.Lines(string(text)) {
		heading, isHeading := strings.CutPrefix(strings.TrimSpace(line), "## ")
		switch cells := strings.Split(line, "|"); {
		case heading == "The attributes":
			tables = append(tables, table{at: []string{""}})
		case isHeading:
			tables = append(tables, table{at: strings.Split(strings.ReplaceAll(heading, "`", ""), ", ")})
		case strings.HasPrefix(line, "- `"):
			name, _, _ := strings.Cut(strings.TrimPrefix(line, "- `"), "`")
			last := &tables[len(tables)-1]
			last.fields = append(last.fields, documented{name: name})
		case len(cells) == 6 && strings.HasPrefix(cells[1], " `"):
			last := &tables[len(tables)-1]
			last.fields = append(last.fields, documented{strings.Trim(cells[1], " `"), cells[2], strings.TrimSpace(cells[3])})
		}
	}
	return tables
}

// TestDocumentedFields compares the tables with the tags of the structs. It sets a field that doesn't exist in each object, because the
// parser's error lists those that do.
func TestDocumentedFields(t *testing.T) {
	known := regexp.MustCompile(`unknown (?:field|attribute); known are (\w+(?:, \w+)*)(?:[,\]]|$)`)
	objects := 0
	for _, table := range documentedTables(t) {
		var want []string
		for _, f := range table.fields {
			want = append(want, f.name)
		}
		slices.Sort(want)
		for _, at := range table.at {
			_, err := Parse(attributesWith(at, "{nonsense: x}"), testPod())
			found := known.FindStringSubmatch(fmt.Sprint(err))
			if found == nil {
				t.Errorf("%s: %v", at, err)
				continue
			}
			got := strings.Split(found[1], ", ")
			slices.Sort(got)
			expect.Equal(t, fmt.Sprintf("the fields of %q, compared with docs/attributes.md", at), got, want)
			objects++
		}
	}
	expect.Equal(t, "documented objects", objects, 34)
}

// attributesWith returns attributes with a text at a place of the tables.
func attributesWith(at, text string) map[string]string {
	if at == "" {
		return map[string]string{"nonsense": "x"}
	}
	steps := strings.Split(at, ".")
	for i, step := range slices.Backward(steps) {
		name, isList := strings.CutSuffix(step, "[]")
		if isList {
			text = "[" + text + "]"
		}
		if i > 0 {
			text = "{" + name + ": " + text + "}"
			continue
		}
		if name == attrItems {
			return map[string]string{"configMap": "settings", attrItems: text}
		}
		return map[string]string{name: text}
	}
	return nil
}

// TestDocumentedDefaults: an attribute with its documented default means the same as none.
func TestDocumentedDefaults(t *testing.T) {
	none := parsed(t, map[string]string{"configMap": "settings"})
	tried := 0
	for _, f := range documentedTables(t)[0].fields {
		// Package payload decides the mode of a spec without one.
		if !strings.HasPrefix(f.byDefault, "`") || f.name == "defaultMode" {
			continue
		}
		value := strings.Trim(f.byDefault, "`\"")
		expect.Equal(t, f.name+"="+value, parsed(t, map[string]string{"configMap": "settings", f.name: value}), none)
		expect.Has(t, "the values of "+f.name+", with its default", f.value, value)
		tried++
	}
	expect.Equal(t, "attributes with a default", tried, 5)
}
