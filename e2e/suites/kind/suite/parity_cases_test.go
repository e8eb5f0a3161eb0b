package suite

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// parityCase is a view that the kubelet's volume and refvol's must show alike.
type parityCase struct {
	name string
	view view
	// objects exist before the pod, by kind and name.
	objects []stored
	// changes happen while the pod runs.
	changes []stored
	// keeps is set where no file changes. It is what the kubelet says on the pod about a
	// change that takes away what is required, or noEvent.
	keeps string
}

// noEvent is for a case of which nobody has anything to say.
const noEvent = "nothing"

// stored is what an object holds, or that it goes, where the contents are nil.
type stored struct {
	kind, name string
	contents   *contents
}

// text returns contents of a few short values: key, value, key, value...
func text(pairs ...string) *contents {
	c := &contents{text: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		c.text[pairs[i]] = pairs[i+1]
	}
	return c
}

// notText is in no encoding.
func notText() []byte { return []byte{0, 1, 0xfe, 0xff, '\n', 0} }

// varied returns contents with every sort of key and value.
func varied() *contents {
	return &contents{
		text: map[string]string{
			"app.yaml":               "debug: true\nname: \"ä €\"\n",
			"empty":                  "",
			".hidden":                "dot",
			"UPPER_lower-1.2":        "x",
			strings.Repeat("k", 253): "long name",
			"large":                  strings.Repeat("0123456789abcde\n", 4096),
		},
		binary: map[string][]byte{"blob": notText()},
	}
}

// staticCases returns the cases whose objects don't change.
func staticCases(kind string) []parityCase {
	one := func(name string, c *contents, v view) parityCase {
		return parityCase{name: name, view: v, objects: []stored{{kind, name, c}}}
	}
	single := func(name string, items ...corev1.KeyToPath) view {
		return view{sources: []corev1.VolumeProjection{source(kind, name, items...)}}
	}
	cases := []parityCase{
		one("default-mode", varied(), single("default-mode")),
		one("mapping", varied(), single("mapping",
			item("app.yaml", "conf/deep/er/app.yaml"), item("blob", "conf/blob"), item("empty", "e"),
			item("app.yaml", "again"), item(".hidden", "with space/ä€"), item("large", "./un//clean/./path"),
			item("UPPER_lower-1.2", "slash/"))),
		one("item-mode", text("a", "1", "b", "2", "c", "3"), single("item-mode",
			moded("a", "a", 0o400), moded("b", "dir/b", 0o777), moded("c", "c", 0))),
		one("empty-object", text(), single("empty-object")),
		one("immutable", &contents{text: map[string]string{"a": "1"}, immutable: true}, single("immutable")),
		{name: "optional-object", view: view{sources: []corev1.VolumeProjection{optional(source(kind, "optional-object"))}}},
		one("optional-key", text("a", "1"), view{sources: []corev1.VolumeProjection{
			optional(source(kind, "optional-key", item("a", "a"), item("none", "dir/none"))),
		}}),
	}
	for name, mode := range map[string]int32{"mode-0400": 0o400, "mode-0000": 0, "mode-0777": 0o777, "mode-0640": 0o640} {
		c := one(name, text("a", "1", "b", "2"), single(name, item("a", "dir/a"), moded("b", "b", 0o604)))
		c.view.defaultMode = &mode
		cases = append(cases, c)
	}
	return append(cases, projectedCases(kind)...)
}

// userCases returns the cases whose files have owners of their own.
func userCases(kind string) []parityCase {
	items := []corev1.KeyToPath{ofUser("a", "dir/a", 1000), ofUser("a", "root", 0), ofUser("b", "b", 1002), item("b", "default")}
	items[2].Mode = new(int32(0o400))
	users := view{sources: []corev1.VolumeProjection{source(kind, "users", items...)}}
	byDefault := users
	byDefault.defaultUser = new(int64(1000))
	projected := byDefault
	projected.projected = true
	var cases []parityCase
	for name, v := range map[string]view{"users": users, "users-default": byDefault, "users-projected": projected} {
		cases = append(cases, parityCase{name: name, view: v, objects: []stored{{kind, "users", text("a", "1", "b", "2")}}})
	}
	return cases
}

// projectedCases returns the cases of several sources, one of them always of the
// kind.
func projectedCases(kind string) []parityCase {
	other := kindSecret
	if kind == kindSecret {
		other = kindConfigMap
	}
	projected := func(sources ...corev1.VolumeProjection) view { return view{projected: true, sources: sources} }
	both := projected(
		source(kind, "sources", item("a", "dir/a"), moded("b", "b", 0o440)),
		source(other, "sources"),
		optional(source(other, "sources-none")),
		optional(source(kind, "sources", item("none", "none"), item("a", "again"))),
	)
	both.defaultMode = new(int32(0o444))
	return []parityCase{
		{name: "sources", view: both, objects: []stored{{kind, "sources", text("a", "1", "b", "2")}, {other, "sources", varied()}}},
		{
			name: "later-wins",
			view: projected(source(kind, "later-wins", item("a", "b"), item("a", "c")), source(other, "later-wins"), source(kind, "later-wins-3")),
			objects: []stored{
				{kind, "later-wins", text("a", "first")},
				{other, "later-wins", text("b", "second", "d", "second")},
				{kind, "later-wins-3", text("d", "third")},
			},
		},
		{name: "one-projected", view: projected(source(kind, "one-projected")), objects: []stored{{kind, "one-projected", text("a", "1")}}},
		{name: "nothing", view: projected(optional(source(kind, "nothing")), optional(source(other, "nothing")))},
	}
}

// changingCases returns the cases whose objects change while the pod runs. When the
// last one's change is in the kubelet's volume, the others have come at the same sync.
func changingCases(kind string) []parityCase {
	single := func(s corev1.VolumeProjection) view { return view{sources: []corev1.VolumeProjection{s}} }
	cases := []parityCase{
		{name: "twice", view: single(source(kind, "updated", item("a", "dir/renamed")))},
		{name: "keys", view: single(source(kind, "keys")), objects: []stored{{kind, "keys", varied()}}},
		{name: "emptied", view: single(source(kind, "emptied")), objects: []stored{{kind, "emptied", varied()}}},
		{name: "to-binary", view: single(source(kind, "to-binary")), objects: []stored{{kind, "to-binary", text("a", "1")}}},
		{name: "recreated", view: single(source(kind, "recreated")), objects: []stored{{kind, "recreated", text("a", "1")}}},
		{name: "optional-created", view: single(optional(source(kind, "optional-created")))},
		{name: "optional-updated", view: single(optional(source(kind, "optional-updated"))), objects: []stored{{kind, "optional-updated", text("a", "1")}}},
		{name: "optional-deleted", view: single(optional(source(kind, "optional-deleted"))), objects: []stored{{kind, "optional-deleted", text("a", "1")}}},
		{
			name:    "optional-keys",
			view:    single(optional(source(kind, "optional-keys", item("a", "dir/a"), item("b", "dir/b"), item("c", "c")))),
			objects: []stored{{kind, "optional-keys", text("a", "1", "c", "3")}},
		},
		{
			name: "several", view: view{projected: true, sources: []corev1.VolumeProjection{
				source(kind, "several"), optional(source(kind, "several-2")), source(kind, "updated", item("a", "a")),
			}},
			objects: []stored{{kind, "several", text("x", "1")}, {kind, "several-2", text("y", "1", "x", "2")}},
		},
	}
	changes := map[string][]stored{
		"twice":            {},
		"keys":             {{kind, "keys", text("empty", "", "new", "1", "app.yaml", "debug: false")}},
		"emptied":          {{kind, "emptied", text()}},
		"to-binary":        {{kind, "to-binary", &contents{binary: map[string][]byte{"a": notText()}}}},
		"recreated":        {{kind, "recreated", nil}, {kind, "recreated", text("b", "2")}},
		"optional-created": {{kind, "optional-created", text("a", "1")}},
		"optional-updated": {{kind, "optional-updated", text("a", "2")}},
		"optional-deleted": {{kind, "optional-deleted", nil}},
		"optional-keys":    {{kind, "optional-keys", text("b", "2", "c", "4")}},
		"several":          {{kind, "several", text("z", "1")}, {kind, "several-2", nil}},
	}
	for i := range cases {
		cases[i].changes = changes[cases[i].name]
	}
	cases = append(cases, keepingCases(kind)...)
	return append(cases, parityCase{
		name: "updated", view: single(source(kind, "updated")),
		objects: []stored{{kind, "updated", text("a", "1", "b", "2")}},
		changes: []stored{{kind, "updated", text("a", "changed", "b", "2")}},
	})
}

// keepingCases returns the cases that lose what they require, and one whose object
// only seems to change: their files stay.
func keepingCases(kind string) []parityCase {
	single := func(s corev1.VolumeProjection) view { return view{sources: []corev1.VolumeProjection{s}} }
	missingKey := "configmap references non-existent config key: b"
	if kind == kindSecret {
		missingKey = "references non-existent secret key: b"
	}
	return []parityCase{
		{name: "deleted", view: single(source(kind, "deleted")), objects: []stored{{kind, "deleted", text("a", "1")}}, changes: []stored{{kind, "deleted", nil}}, keeps: `"deleted" not found`},
		{
			name: "key-removed", view: single(source(kind, "key-removed", item("a", "a"), item("b", "dir/b"))),
			objects: []stored{{kind, "key-removed", text("a", "1", "b", "2")}}, changes: []stored{{kind, "key-removed", text("a", "2")}},
			keeps: missingKey,
		},
		{name: "namesake", view: single(source(kind, "namesake")), objects: []stored{{kind, "namesake", text("a", "1")}}, keeps: noEvent},
	}
}
