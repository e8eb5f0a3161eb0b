package check

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/refvol/refvol/pkg/volume"
)

// checked returns the problems and warnings for a pod with one volume, v, as in podWith.
func checked(t *testing.T, cluster Cluster, nodeIdentity bool, text string) (problems, warnings []string) {
	t.Helper()
	r := checkedBy(t, Options{Cluster: cluster, NodeIdentity: nodeIdentity}, text)
	const at = "f.yaml, document 1: Pod ns/p: "
	return trim(at, texts(r.Problems)), trim(at, texts(r.Warnings))
}

// A mount below a volume needs a directory there. If the plugin reads the pod's spec, it finds the mount.
func TestMountsBelow(t *testing.T) {
	const (
		app     = "sources: \"[{configMap: {name: m, items: [{key: k, path: conf/k}]}}]\""
		own     = "  - {name: own, configMap: {name: m, items: [{key: k, path: conf/k}]}}\n"
		path    = "spec.containers[0].volumeMounts[1].mountPath: "
		noToken = "  automountServiceAccountToken: false\n"
		missing = "the volume has no directory for it, and the container will not start: set directories: "
	)
	mounts := func(mounts string) string { return "[{name: c, volumeMounts: [" + mounts + "]}]" }
	below := mounts("{name: v, mountPath: /a}, {name: e, mountPath: /a/tls}, {name: e, mountPath: /a/x/y}")
	for _, test := range []struct {
		name, attributes, containers, more string
		nodeIdentity                       bool
		problems                           []string
	}{
		{name: "no directories", attributes: "{" + app + "}", containers: below, problems: []string{
			path + missing + `'["tls"]' in the volume's attributes`,
			strings.Replace(path, "[1]", "[2]", 1) + missing + `'["x/y"]' in the volume's attributes`,
		}},
		{name: "another directory", attributes: "{" + app + ", directories: \"[tls]\"}", containers: below, problems: []string{
			strings.Replace(path, "[1]", "[2]", 1) + missing + `'["x/y"]' in the volume's attributes`,
		}},
		{name: "directories", attributes: "{" + app + ", directories: \"[tls, x/y/z]\"}", containers: below},
		{name: "a volume source", attributes: "{volume: own}", more: own, containers: below},
		{
			name: "a volume source, at a directory of files", attributes: "{volume: own}", more: own, containers: mounts("{name: v, mountPath: /a}, {name: e, mountPath: /a/conf}"),
			problems: []string{path + `Invalid value: "conf": must not be "conf" or below it, as the file "conf/k" of spec.volumes[1].configMap.items[0].path is: mount elsewhere, or map the key to another path`},
		},
		{
			name: "at a directory of files", attributes: "{" + app + "}", containers: mounts("{name: v, mountPath: /a}, {name: e, mountPath: /a/conf}"),
			problems: []string{path + `Invalid value: "conf": must not be "conf" or below it, as the file "conf/k" of sources[0].configMap.items[0].path is: mount elsewhere, or map the key to another path`},
		},
		{
			name: "below a subPath", attributes: "{" + app + ", updatePolicy: Pinned}", containers: mounts("{name: v, mountPath: /a, subPath: conf}, {name: e, mountPath: /a/tls}"),
			problems: []string{path + `Forbidden: must not lie below spec.containers[0].volumeMounts[0], which mounts "conf" of the volume by subPath: each update would take this mount away; set writeStrategy: InPlace in the volume's attributes`},
		},
		{name: "the token", attributes: "{" + app + "}", containers: mounts("{name: v, mountPath: /var/run/secrets}"), problems: []string{
			"spec.containers[0].volumeMounts[0].mountPath: the service account's token is mounted below it: " + missing + `'["kubernetes.io/serviceaccount"]' in the volume's attributes`,
		}},
		{name: "no token", attributes: "{" + app + "}", more: noToken, containers: mounts("{name: v, mountPath: /var/run/secrets}")},
		{name: "the token, with a volume source", attributes: "{volume: own}", more: own, containers: mounts("{name: v, mountPath: /var/run/secrets}")},
	} {
		text := podWith(test.attributes, test.containers) + test.more
		problems, warnings := checked(t, nil, false, text)
		lines(t, test.name, problems, test.problems)
		lines(t, test.name, warnings, nil)
	}
	problems, _ := checked(t, nil, true, podWith("{configMap: m}", below)+"  - {name: own, configMap: {name: m}}\n")
	lines(t, "with the node's identity", problems, nil)
}

// A container mounts a file or a directory of a volume: how it behaves, and whether it exists.
func TestSubPaths(t *testing.T) {
	const (
		at      = "spec.containers[0].volumeMounts[0].subPath: "
		inPlace = "; set writeStrategy: InPlace in the volume's attributes"
		file    = at + "the file that it mounts keeps its content" + inPlace
		dir     = at + "the directory that it mounts becomes empty a second after the volume's first update" + inPlace
		missing = at + "its key is optional: while it is missing the container fails (failed to create subPath directory)"
		items   = `sources: "[{configMap: {name: m, items: [{key: k, path: conf/k}, {key: l, path: l}]}}, {secret: {name: s, optional: true, items: [{key: o, path: o}, {key: p, path: d/p}]}}]"`
	)
	for _, test := range []struct {
		attributes, subPath string
		cluster             *fakeCluster
		warnings            []string
	}{
		{"{" + items + "}", "l", nil, []string{file}},
		{"{" + items + "}", "conf/k", nil, []string{file}},
		{"{" + items + "}", "conf", nil, []string{dir}},
		{"{" + items + "}", "./conf/", nil, []string{dir}},
		{"{" + items + "}", "o", nil, []string{file, missing}},
		{"{" + items + "}", "nowhere", nil, []string{file}},
		{"{" + items + "}", "d", nil, []string{dir, missing}},
		{"{" + items + ", writeStrategy: InPlace}", "o", nil, []string{missing}},
		{"{" + items + ", updatePolicy: Pinned}", "conf", nil, nil},
		{"{configMap: m}", "k", nil, []string{file}},
		{`{configMap: m, directories: "[e, f/g]"}`, "k", nil, []string{file}},
		{`{configMap: m, directories: "[e, f/g]"}`, "e", nil, []string{dir}},
		{`{configMap: m, directories: "[e, f/g]"}`, "f", nil, []string{dir}},
		{`{configMap: m, optional: "true", writeStrategy: InPlace}`, "k", nil, []string{missing}},
		{`{sources: "[{configMap: {name: m, optional: true}}, {secret: {name: s}}]", writeStrategy: InPlace}`, "k", nil, nil},
		{"{" + items + ", writeStrategy: InPlace}", "o", &fakeCluster{objects: map[string]Object{`Secret "ns/s"`: having("o"), `ConfigMap "ns/m"`: having("k", "l")}}, nil},
		{"{" + items + ", writeStrategy: InPlace}", "o", &fakeCluster{objects: map[string]Object{`Secret "ns/s"`: having("p"), `ConfigMap "ns/m"`: having("k", "l")}}, []string{missing}},
		{`{configMap: m, optional: "true", writeStrategy: InPlace}`, "k", &fakeCluster{objects: map[string]Object{`ConfigMap "ns/m"`: {Exists: Yes, BinaryData: sets.New("k")}}}, nil},
		{`{configMap: m, optional: "true", writeStrategy: InPlace}`, "k", &fakeCluster{objects: map[string]Object{}}, []string{missing}},
	} {
		var cluster Cluster
		if test.cluster != nil {
			test.cluster.objects[`Secret "ns/i"`] = having("k")
			cluster = test.cluster
		}
		_, warnings := checked(t, cluster, false, podWith(test.attributes, "[{name: c, volumeMounts: [{name: v, mountPath: /b, subPath: "+test.subPath+"}]}]"))
		lines(t, test.attributes+" "+test.subPath, warnings, test.warnings)
	}
}

// TestRestartRules: a sidecar whose exit restarts only itself is a problem.
func TestRestartRules(t *testing.T) {
	const (
		own   = `[{name: w, image: "ghcr.io/refvol/refvol-notify:v1", args: [--exit-code=42]`
		field = "spec.containers[0].restartPolicyRules: Required value: action RestartAllContainers for exit code 42: otherwise only w restarts after a change"
	)
	rule := func(text string) string { return own + ", restartPolicyRules: [" + text + "]}]" }
	for containers, want := range map[string]string{
		own + "}]": field,
		`[{name: w, image: "reg:5000/refvol-notify@sha256:0", args: [--exit-code, "42"]}]`: field,
		`[{name: w, image: x, command: [/bin/refvol-notify, -exit-code, "42"]}]`:           field,
		`[{name: w, image: refvol-notify, command: [/other], args: [--exit-code=42]}]`:     "",
		`[{name: w, image: refvol-notify, args: [--signal=HUP, --process=nginx]}]`:         "",
		`[{name: w, image: refvol-notify-more, args: [--exit-code=42]}]`:                   "",
		`[{name: w, image: refvol-notify, args: [--exit-code]}]`:                           "",
		rule("{action: RestartAllContainers, exitCodes: {operator: In, values: [1, 42]}}"): "",
		rule("{action: RestartAllContainers, exitCodes: {operator: NotIn, values: [1]}}"):  "",
		rule("{action: RestartAllContainers, exitCodes: {operator: In, values: [41]}}"):    field,
		rule("{action: RestartAllContainers, exitCodes: {operator: NotIn, values: [42]}}"): field,
		rule("{action: Restart, exitCodes: {operator: In, values: [42]}}"):                 field,
		rule("{action: RestartAllContainers}"):                                             field,
	} {
		problems, _ := checked(t, nil, false, podWith("{secret: s, updatePolicy: Pinned}", containers))
		if got := strings.Join(problems, "\n"); got != want {
			t.Errorf("%s:\n got %q\nwant %q", containers, got, want)
		}
	}
}

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
		must(t, err)
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
