package check

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
)

// checked returns the problems and warnings for a pod with one volume, v, as in podWith.
func checked(t *testing.T, cluster Cluster, nodeIdentity bool, text string) (problems, warnings []string) {
	t.Helper()
	c, err := New(Options{Driver: driver, Namespace: "ns", Cluster: cluster, NodeIdentity: nodeIdentity})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Add(t.Context(), "f.yaml", strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	const at = "f.yaml, document 1: Pod ns/p: "
	return trim(at, texts(c.Report().Problems)), trim(at, texts(c.Report().Warnings))
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
