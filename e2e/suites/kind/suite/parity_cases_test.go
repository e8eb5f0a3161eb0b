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
	// keeps is set where no file changes, as a change takes away what is required, or only seems to be one.
	keeps bool
}

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

// single is a view of one object, by its items or whole.
func single(kind, name string, items ...corev1.KeyToPath) view {
	return view{sources: []corev1.VolumeProjection{source(kind, name, items...)}}
}

// changing is a case of a whole object that has the contents before the pod starts, unless they are nil, and the others one after the other.
func changing(kind, name string, before *contents, after ...*contents) parityCase {
	c := parityCase{name: name, view: single(kind, name)}
	if before != nil {
		c.objects = []stored{{kind, name, before}}
	}
	for _, one := range after {
		c.changes = append(c.changes, stored{kind, name, one})
	}
	return c
}

// by has the case show items of its object.
func (c parityCase) by(items ...corev1.KeyToPath) parityCase {
	c.view = single(c.objects[0].kind, c.objects[0].name, items...)
	return c
}

// optional has the case do without what is missing.
func (c parityCase) optional() parityCase {
	c.view.sources[0] = optional(c.view.sources[0])
	return c
}

// keeping has the case keep its files.
func (c parityCase) keeping() parityCase {
	c.keeps = true
	return c
}

// mode has the case's volume have a mode.
func (c parityCase) mode(mode int32) parityCase {
	c.view.defaultMode = &mode
	return c
}

// staticCases returns the cases whose objects don't change.
func staticCases(kind string) []parityCase {
	modes := []corev1.KeyToPath{item("a", "dir/a"), moded("b", "b", 0o604)}
	return append([]parityCase{
		changing(kind, "default-mode", varied()),
		changing(kind, "mapping", varied()).by(
			item("app.yaml", "conf/deep/er/app.yaml"), item("blob", "conf/blob"), item("empty", "e"),
			item("app.yaml", "again"), item(".hidden", "with space/ä€"), item("large", "./un//clean/./path"),
			item("UPPER_lower-1.2", "slash/")),
		changing(kind, "item-mode", text("a", "1", "b", "2", "c", "3")).by(
			moded("a", "a", 0o400), moded("b", "dir/b", 0o777), moded("c", "c", 0)),
		changing(kind, "empty-object", text()),
		changing(kind, "immutable", &contents{text: map[string]string{"a": "1"}, immutable: true}),
		changing(kind, "optional-object", nil).optional(),
		changing(kind, "optional-key", text("a", "1")).by(item("a", "a"), item("none", "dir/none")).optional(),
		changing(kind, "mode-0400", text("a", "1", "b", "2")).by(modes...).mode(0o400),
		changing(kind, "mode-0000", text("a", "1", "b", "2")).by(modes...).mode(0),
	}, projectedCases(kind)...)
}

// userCases returns the cases whose files have owners of their own.
func userCases(kind string) []parityCase {
	items := []corev1.KeyToPath{ofUser("a", "dir/a", 1000), ofUser("a", "root", 0), ofUser("b", "b", 1002), item("b", "default")}
	items[2].Mode = new(int32(0o400))
	users := changing(kind, "users", text("a", "1", "b", "2")).by(items...)
	byDefault := users
	byDefault.name, byDefault.view.defaultUser = "users-default", new(int64(1000))
	projected := byDefault
	projected.name, projected.view.projected = "users-projected", true
	return []parityCase{users, byDefault, projected}
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
		{name: "nothing", view: projected(optional(source(kind, "nothing")), optional(source(other, "nothing")))},
	}
}

// changingCases returns the cases whose objects change while the pod runs. When the last one's change is in the kubelet's volume, the others
// have come at the same sync.
func changingCases(kind string) []parityCase {
	return []parityCase{
		{name: "twice", view: single(kind, "updated", item("a", "dir/renamed"))},
		changing(kind, "keys", varied(), text("empty", "", "new", "1", "app.yaml", "debug: false")),
		changing(kind, "emptied", varied(), text()),
		changing(kind, "to-binary", text("a", "1"), &contents{binary: map[string][]byte{"a": notText()}}),
		changing(kind, "recreated", text("a", "1"), nil, text("b", "2")),
		changing(kind, "optional-created", nil, text("a", "1")).optional(),
		changing(kind, "optional-deleted", text("a", "1"), nil).optional(),
		changing(kind, "optional-keys", text("a", "1", "c", "3"), text("b", "2", "c", "4")).
			by(item("a", "dir/a"), item("b", "dir/b"), item("c", "c")).optional(),
		{
			name: "several", view: view{projected: true, sources: []corev1.VolumeProjection{
				source(kind, "several"), optional(source(kind, "several-2")), source(kind, "updated", item("a", "a")),
			}},
			objects: []stored{{kind, "several", text("x", "1")}, {kind, "several-2", text("y", "1", "x", "2")}},
			changes: []stored{{kind, "several", text("z", "1")}, {kind, "several-2", nil}},
		},

		changing(kind, "deleted", text("a", "1"), nil).keeping(),
		changing(kind, "key-removed", text("a", "1", "b", "2"), text("a", "2")).by(item("a", "a"), item("b", "dir/b")).keeping(),
		changing(kind, "namesake", text("a", "1")).keeping(),

		changing(kind, "updated", text("a", "1", "b", "2"), text("a", "changed", "b", "2")),
	}
}
