package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/internal/doclines"
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
	type mount struct {
		name, attributes, containers, more string
		problems                           []string
	}
	row := func(name, attributes, containers, more string, problems ...string) mount {
		return mount{name, attributes, containers, more, problems}
	}
	for _, test := range []mount{
		row("no directories", "{"+app+"}", below, "",
			path+missing+`'["tls"]' in the volume's attributes`,
			strings.Replace(path, "[1]", "[2]", 1)+missing+`'["x/y"]' in the volume's attributes`),
		row("another directory", "{"+app+", directories: \"[tls]\"}", below, "",
			strings.Replace(path, "[1]", "[2]", 1)+missing+`'["x/y"]' in the volume's attributes`),
		row("directories", "{"+app+", directories: \"[tls, x/y/z]\"}", below, ""),
		row("a volume source", "{volume: own}", below, own),
		row("a volume source, at a directory of files", "{volume: own}", mounts("{name: v, mountPath: /a}, {name: e, mountPath: /a/conf}"), own,
			path+`Invalid value: "conf": must not be "conf" or below it, as the file "conf/k" of spec.volumes[1].configMap.items[0].path is: mount elsewhere, or map the key to another path`),
		row("at a directory of files", "{"+app+"}", mounts("{name: v, mountPath: /a}, {name: e, mountPath: /a/conf}"), "",
			path+`Invalid value: "conf": must not be "conf" or below it, as the file "conf/k" of sources[0].configMap.items[0].path is: mount elsewhere, or map the key to another path`),
		row("below a subPath", "{"+app+", updatePolicy: Pinned}", mounts("{name: v, mountPath: /a, subPath: conf}, {name: e, mountPath: /a/tls}"), "",
			path+`Forbidden: must not lie below spec.containers[0].volumeMounts[0], which mounts "conf" of the volume by subPath: each update would take this mount away; set writeStrategy: InPlace in the volume's attributes`),
		row("the token", "{"+app+"}", mounts("{name: v, mountPath: /var/run/secrets}"), "",
			"spec.containers[0].volumeMounts[0].mountPath: the service account's token is mounted below it: "+missing+`'["kubernetes.io/serviceaccount"]' in the volume's attributes`),
		row("no token", "{"+app+"}", mounts("{name: v, mountPath: /var/run/secrets}"), noToken),
		row("the token, with a volume source", "{volume: own}", mounts("{name: v, mountPath: /var/run/secrets}"), own),
	} {
		problems, warnings := checked(t, nil, false, podWith(test.attributes, test.containers)+test.more)
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
		fresh   = `sources: "[{configMap: {name: app, path: rules.d, optional: true}},
    {expand: {path: app.yaml, configMap: {name: app, key: t, optional: true}, env: [{name: A}]}}]"`
		items = `sources: "[{configMap: {name: m, items: [{key: k, path: conf/k}, {key: l, path: l}]}}, {secret: {name: s, optional: true, items: [{key: o, path: o}, {key: p, path: d/p}]}}]"`
	)
	app := func(keys ...string) *fakeCluster {
		return &fakeCluster{objects: map[string]Object{`ConfigMap "ns/app"`: having(keys...)}}
	}
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
		{"{" + fresh + "}", "rules.d", app("t"), []string{dir}},
		{"{" + fresh + "}", "rules.d/a", app("a", "t"), []string{file}},
		{"{" + fresh + ", writeStrategy: InPlace}", "rules.d/a", app("a", "t"), nil},
		{"{" + fresh + ", writeStrategy: InPlace}", "rules.d/a", app("rules.d/a", "t"), []string{missing}},
		{"{" + fresh + ", writeStrategy: InPlace}", "app.yaml", app("t"), nil},
		{"{" + fresh + ", writeStrategy: InPlace}", "app.yaml", app(), []string{missing}},
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

// TestPodLimits: what all volumes of a pod have together is limited, and one more of it is a problem. TestPodLimitsOfTemplates has one volume more.
func TestPodLimits(t *testing.T) {
	shows := func(objects, items, bytes int) driverVolume {
		spec := &volume.Spec{Sources: make([]volume.Source, objects)}
		for i := range spec.Sources {
			spec.Sources[i].Projection = &volume.Projection{Ref: volume.Ref{Kind: volume.Secret, Name: fmt.Sprint(i)}}
		}
		dir := strings.Repeat("d", bytes)
		spec.Sources[0].Projection.Items = slices.Repeat([]volume.Item{{Path: dir + "/"}}, items)
		spec.Sources[0].Below.Path = dir // it counts for each item, with the slash
		return driverVolume{resolved: spec}
	}
	const (
		less   = " ConfigMaps and Secrets, more than 1024: each counts once for each volume that names it: show objects in fewer volumes"
		listed = " sources, items, variables and directories, more than 16384: leave out items, or show the object in fewer volumes"
		path   = " bytes of names and paths, more than 4194304: the path of a source counts for each of its files: use a shorter one"
	)
	for _, test := range []struct {
		name   string
		driven int
		shows  driverVolume // four of these
		want   string
	}{
		{"128 volumes", 128, shows(1, 0, 0), ""},
		{"1024 objects", 4, shows(256, 0, 0), ""},
		{"1028 objects", 4, shows(257, 0, 0), "Too many: the volumes of the pod name 1028" + less},
		{"16388 items", 4, shows(1, 4096, 0), "Too many: the volumes of the pod name 16388" + listed},
		{"4 MiB of paths", 4, shows(1, 1023, 1023), ""},
		{"more than 4 MiB of paths", 4, shows(1, 1024, 1023), "Too many: the volumes of the pod name 4198400" + path},
	} {
		c := newChecker(t, Options{})
		c.podLimits(Location{}, podTemplate{at: field.NewPath("spec")}, test.driven, slices.Repeat([]driverVolume{test.shows}, 4))
		if got := c.Report().Problems; len(got) > 1 || (len(got) == 1) != (test.want != "") || len(got) == 1 && (got[0].Field != "spec.volumes" || got[0].Message != test.want) {
			t.Errorf("%s: got %q, want %q", test.name, texts(got), test.want)
		}
	}
}

// TestPodLimitsOfTemplates: the limits are those of each pod that a workload makes. A volume with a mistake is a volume of the pod, too, but
// what it names is not known.
func TestPodLimitsOfTemplates(t *testing.T) {
	const one = "{name: %s, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: {%s}}}"
	var all []string
	for i := range 128 {
		all = append(all, fmt.Sprintf(one, fmt.Sprint("v", i), "secret: s"))
	}
	text := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: p}\nspec: {selector: {}, template: {spec: {volumes: [" +
		strings.Join(append(all, fmt.Sprintf(one, "bad", "volume: none")), ", ") + "]}}}\n"
	const at = "f.yaml, document 1: Deployment ns/p: spec.template.spec.volumes"
	lines(t, "problems", texts(add(t, nil, text).Problems), []string{
		at + `[128].csi.volumeAttributes.volume: the pod has no volume "none"`,
		at + ": the pod has 129 volumes of this driver, more than 128: show several objects in one volume",
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
		for _, want := range all {
			doclines.Says(t, "../../"+file, numbers.Replace(want))
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
