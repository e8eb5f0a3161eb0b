package check

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// manyVolumes returns the volumes field of a pod: n volumes of the driver, and other volumes. In the attributes, N stands for the number of
// the volume.
func manyVolumes(n int, attributes string, others ...string) string {
	var all []string
	for i := range n {
		text := fmt.Sprintf("{name: vN, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: %s}}", attributes)
		all = append(all, strings.ReplaceAll(text, "N", fmt.Sprint(i)))
	}
	return "volumes: [" + strings.Join(append(all, others...), ", ") + "]"
}

// list returns a list in flow style of n copies. In the text, # stands for the number of the copy.
func list(n int, text string) string {
	var all []string
	for i := range n {
		all = append(all, strings.ReplaceAll(text, "#", fmt.Sprint(i)))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// TestPodLimits: what all volumes of a pod have together is limited, and one more of it is a problem.
func TestPodLimits(t *testing.T) {
	objects := func(n int) string { return `{sources: "` + list(n, "{secret: {name: s#}}") + `"}` }
	native := func(items int) string {
		return "{name: native, configMap: {name: c, items: " + list(items, "{key: k, path: p#}") + "}}"
	}
	deep := strings.Repeat(strings.Repeat("d", 200)+"/", 9) + "d"
	below := `{sources: "[{volume: {name: native, path: ` + deep + `}}]"}`
	// The bytes of a volume that shows so many items below the deep directory: source, object, keys and paths.
	bytesOf := func(items int) (n int) {
		n = len(deep) + len("ns") + len("c")
		for i := range items {
			n += len("k") + len(deep) + len("/p") + len(fmt.Sprint(i))
		}
		return n
	}
	const (
		many   = ": show several objects in one volume"
		less   = " ConfigMaps and Secrets, more than 1024: each counts once for each volume that names it: show objects in fewer volumes"
		listed = " sources, items, variables and directories, more than 16384: leave out items, or show the object in fewer volumes"
		path   = " bytes of names and paths, more than 4194304: the path of a source counts for each of its files: use a shorter one"
	)
	for _, test := range []struct {
		name, volumes string
		want          []string
	}{
		{"128 volumes", manyVolumes(128, "{secret: s}"), nil},
		{"129 volumes", manyVolumes(129, "{secret: s}"), []string{"the pod has 129 volumes of this driver, more than 128" + many}},
		{"1024 objects", manyVolumes(4, objects(256)), nil},
		{"1025 objects", manyVolumes(5, objects(205)), []string{"Too many: the volumes of the pod name 1025" + less}},
		{"16384 items", manyVolumes(4, "{volume: native}", native(4095)), nil},
		{"16388 items", manyVolumes(4, "{volume: native}", native(4096)), []string{"Too many: the volumes of the pod name 16388" + listed}},
		{"4 MiB of paths", manyVolumes(4, below, native(575)), nil},
		{"more than 4 MiB of paths", manyVolumes(4, below, native(581)), []string{
			fmt.Sprintf("Too many: the volumes of the pod name %d%s", 4*bytesOf(581), path),
		}},
		{"129 volumes of 1032 objects", manyVolumes(129, objects(8)), []string{
			"the pod has 129 volumes of this driver, more than 128" + many, "Too many: the volumes of the pod name 1032" + less,
		}},
	} {
		var want []string
		for _, message := range test.want {
			want = append(want, "f.yaml, document 1: Pod ns/p: spec.volumes: "+message)
		}
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {" + test.volumes + "}\n"
		lines(t, test.name, texts(add(t, nil, text).Problems), want)
	}
}

// TestPodLimitsOfTemplates: the limits are those of each pod that a workload makes.
func TestPodLimitsOfTemplates(t *testing.T) {
	text := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: p}\nspec: {selector: {}, template: {spec: {" + manyVolumes(129, "{secret: s}") + "}}}\n"
	lines(t, "problems", texts(add(t, nil, text).Problems), []string{
		"f.yaml, document 1: Deployment ns/p: spec.template.spec.volumes: the pod has 129 volumes of this driver, more than 128: show several objects in one volume",
	})
}

// TestInvalidVolumesCount: a volume with a mistake is a volume of the pod, too. What it names is not known.
func TestInvalidVolumesCount(t *testing.T) {
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {" +
		manyVolumes(128, "{secret: s}", "{name: bad, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: {volume: none}}}") + "}\n"
	lines(t, "problems", texts(add(t, nil, text).Problems), []string{
		`f.yaml, document 1: Pod ns/p: spec.volumes[128].csi.volumeAttributes.volume: the pod has no volume "none"`,
		"f.yaml, document 1: Pod ns/p: spec.volumes: the pod has 129 volumes of this driver, more than 128: show several objects in one volume",
	})
}

// TestDocumentedLimits: the documents and the policy have the limits of a pod.
func TestDocumentedLimits(t *testing.T) {
	numbers := strings.NewReplacer(
		"VOLUMES", grouped(volume.MaxPodVolumes), "OBJECTS", grouped(volume.MaxPodObjects), "ITEMS", grouped(volume.MaxPodItems),
		"MIB", fmt.Sprint(volume.MaxPodNameBytes>>20), "SOURCES", grouped(256), "LISTED", grouped(mostItems),
	)
	for file, all := range map[string][]string{
		"docs/limits.md": {
			"| volumes of this driver | VOLUMES |",
			"| ConfigMaps and Secrets. An object counts once in each volume that names it: ten volumes that show one object count ten | OBJECTS |",
			"| sources, and what they list: items, variables, parts of joined files; and directories | ITEMS |",
			"| bytes that `path` adds in front of items and keys, with all other bytes of names, paths and values of variables | MIB MiB, or twice those other bytes if that is more |",
		},
		"docs/live-namespaces.md": {
			"more than SOURCES sources, or more than LISTED items", "more than VOLUMES volumes of the driver", "more than OBJECTS sources", "more than ITEMS sources and items",
		},
		"deploy/components/live/policy.yaml": {"publishes VOLUMES volumes", "name OBJECTS objects", "ITEMS sources and items"},
		"docs/check.md":                      {"more than VOLUMES volumes, or more than OBJECTS ConfigMaps and Secrets"},
	} {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		plain := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "\n  #", "\n")), " ")
		for _, want := range all {
			if want = numbers.Replace(want); !strings.Contains(plain, want) {
				t.Errorf("%s doesn't say %q", file, want)
			}
		}
	}
}

// grouped returns a number as the documents write it.
func grouped(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}
