package suite

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// generation is the name of the directory that holds one version of all files.
var generation = regexp.MustCompile(`^\.\.\d{4}_\d{2}_\d{2}_[\d_.]+$`)

// A container that isn't root reads both kinds of object, in the layout of the
// kubelet's own volumes.
func TestContents(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.createConfigMap("settings", object{"app.yaml": "debug: true\n", "empty": ""})
	n.createSecret("login", object{"user": canary("admin"), "password": canary("s3cret")})
	const items = `
- configMap:
    name: settings
    items: [{key: app.yaml, path: conf/app.yaml, mode: 0444}, {key: empty, path: none}]
- secret:
    name: login
    items: [{key: password, path: password}]
`
	p := n.start(newPod("reader",
		refvol("configmap", attributes{"configMap": "settings"}),
		refvol("secret", attributes{"secret": "login"}),
		refvol("default-mode", attributes{"configMap": "settings", "defaultMode": "0404"}),
		refvol("items", attributes{"sources": items, "defaultMode": "0604"}),
	))
	for volume, want := range map[string][]string{
		"configmap": {
			"dir 0755 0:0 .",
			"link ..data -> GENERATION",
			"dir 0755 0:0 GENERATION",
			"file 0644 0:0 GENERATION/app.yaml = debug: true\n",
			"file 0644 0:0 GENERATION/empty = ",
			"link app.yaml -> ..data/app.yaml",
			"link empty -> ..data/empty",
		},
		"secret": {
			"dir 0755 0:0 .",
			"link ..data -> GENERATION",
			"dir 0755 0:0 GENERATION",
			"file 0644 0:0 GENERATION/password = " + canary("s3cret"),
			"file 0644 0:0 GENERATION/user = " + canary("admin"),
			"link password -> ..data/password",
			"link user -> ..data/user",
		},
		"default-mode": {
			"dir 0755 0:0 .",
			"link ..data -> GENERATION",
			"dir 0755 0:0 GENERATION",
			"file 0404 0:0 GENERATION/app.yaml = debug: true\n",
			"file 0404 0:0 GENERATION/empty = ",
			"link app.yaml -> ..data/app.yaml",
			"link empty -> ..data/empty",
		},
		"items": {
			"dir 0755 0:0 .",
			"link ..data -> GENERATION",
			"dir 0755 0:0 GENERATION",
			"dir 0755 0:0 GENERATION/conf",
			"file 0444 0:0 GENERATION/conf/app.yaml = debug: true\n",
			"file 0604 0:0 GENERATION/none = ",
			"file 0604 0:0 GENERATION/password = " + canary("s3cret"),
			"link conf -> ..data/conf",
			"link none -> ..data/none",
			"link password -> ..data/password",
		},
	} {
		checkTree(t, p, volume, want)
	}
}

// A pod's fsGroup owns every file and may read it.
func TestFSGroup(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.createSecret("login", object{"password": canary("s3cret"), "user": canary("admin")})
	spec := newPod("reader", refvol("login", attributes{
		"sources":     `[{secret: {name: login, items: [{key: password, path: deep/password, mode: 0400}, {key: user, path: user}]}}]`,
		"defaultMode": "0600",
	}))
	spec.Spec.SecurityContext.FSGroup = new(int64(2000))
	checkTree(t, n.start(spec), "login", []string{
		"dir 2755 0:2000 .",
		"link ..data -> GENERATION",
		"dir 2755 0:2000 GENERATION",
		"dir 2755 0:2000 GENERATION/deep",
		"file 0440 0:2000 GENERATION/deep/password = " + canary("s3cret"),
		"file 0640 0:2000 GENERATION/user = " + canary("admin"),
		"link deep -> ..data/deep",
		"link user -> ..data/user",
	})
}

// Two volumes of a pod with the same ref are apart from each other, and both live.
func TestSameRefTwice(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.createConfigMap("settings", object{"key": canary("one"), "other": canary("two")})
	p := n.start(newPod("reader",
		refvol("whole", attributes{"configMap": "settings"}),
		refvol("part", attributes{"configMap": "settings", "items": "[{key: key, path: renamed}]"}),
	))
	whole := p.await(mountDir+"whole/key", canary("new"), podTimeout)
	part := p.await(mountDir+"part/renamed", canary("new"), podTimeout)
	n.updateConfigMap("settings", object{"key": canary("new"), "other": canary("two")})
	for _, w := range []*pending{whole, part} {
		if got := w.arrive(); got.Failed > 0 {
			t.Errorf("%s: %+v", w.what, got)
		}
	}
}

// A pod whose root isn't the node's root reads its volume, and sees root's files as
// root's.
func TestUserNamespace(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.createSecret("login", object{"user": canary("admin")})
	spec := newPod("reader", refvol("login", attributes{"secret": "login", "defaultMode": "0400"}))
	spec.Spec.HostUsers = new(false)
	spec.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(0))}
	p := n.start(spec)
	if ids := strings.Fields(p.probe("read", "/proc/self/uid_map")); len(ids) != 3 || ids[1] == "0" {
		t.Fatalf("the container has the node's user ids: %v", ids)
	}
	checkTree(t, p, "login", []string{
		"dir 0755 0:0 .",
		"link ..data -> GENERATION",
		"dir 0755 0:0 GENERATION",
		"file 0400 0:0 GENERATION/user = " + canary("admin"),
		"link user -> ..data/user",
	})
}

// checkTree compares a whole volume with want, where GENERATION stands for the name
// of the directory that ..data points to.
func checkTree(t *testing.T, p *pod, volume string, want []string) {
	t.Helper()
	checkEntries(t, "volume "+volume, p.tree(mountDir+volume), want)
}

// checkEntries is checkTree for what a look at the volume has found.
func checkEntries(t *testing.T, what string, entries []entry, want []string) {
	t.Helper()
	var current string
	for _, e := range entries {
		if e.Path == "..data" {
			current = e.Link
		}
	}
	if !generation.MatchString(current) {
		t.Errorf("%s: ..data points to %q", what, current)
	}
	var got []string
	for _, e := range entries {
		got = append(got, strings.ReplaceAll(describe(e), current, "GENERATION"))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

// describe puts an entry in a line. A link's mode and owner mean nothing.
func describe(e entry) string {
	switch e.Type {
	case "link":
		return "link " + e.Path + " -> " + e.Link
	case "file":
		if e.Denied {
			return "file " + owned(e) + " is not readable"
		}
		return "file " + owned(e) + " = " + string(e.Content)
	}
	return e.Type + " " + owned(e)
}

func owned(e entry) string { return fmt.Sprintf("%s %d:%d %s", e.Mode, e.UID, e.GID, e.Path) }
