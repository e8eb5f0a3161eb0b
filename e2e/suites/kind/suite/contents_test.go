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
	checkEntries(t, "volume login", p.tree(mountDir+"login"), []string{
		"dir 0755 0:0 .",
		"link ..data -> GENERATION",
		"dir 0755 0:0 GENERATION",
		"file 0400 0:0 GENERATION/user = " + canary("admin"),
		"link user -> ..data/user",
	})
}

// checkEntries compares a whole volume with want, where GENERATION stands for the name
// of the directory that ..data points to.
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
