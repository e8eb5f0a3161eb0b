package volume

import (
	"strings"
	"testing"
)

// TestTargets: a path that no kubelet uses is refused with its form, and a long one isn't repeated.
func TestTargets(t *testing.T) {
	const form = "must be /k/pods/uid-1/volumes/kubernetes.io~csi/<volume name>/mount"
	longest := "/k/" + strings.Repeat("x", maxQuoted-len("/k/"))
	for target, want := range map[string]string{
		"/k/pods/uid-1/volumes/kubernetes.io~csi/v/mount":       "",
		"/k/pods/uid-2/volumes/kubernetes.io~csi/v/mount":       `Invalid value: "/k/pods/uid-2/volumes/kubernetes.io~csi/v/mount": ` + form,
		"/k/pods/uid-1/volumes/kubernetes.io~empty-dir/v/mount": `Invalid value: "/k/pods/uid-1/volumes/kubernetes.io~empty-dir/v/mount": ` + form,
		"/k/pods/uid-1/volumes/kubernetes.io~csi/../mount":      `Invalid value: "/k/pods/uid-1/volumes/kubernetes.io~csi/../mount": ` + form,
		longest:       `Invalid value: "` + longest + `": ` + form,
		longest + "x": "Invalid value: a path of 257 bytes: " + form,
	} {
		got := ""
		if err := (Pod{UID: "uid-1"}).CheckTarget("/k", target); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", target, got, want)
		}
	}
}

// The longest name of a file may be the name of a volume.
func TestElements(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, strings.Repeat("n", 255): true, strings.Repeat("n", 256): false,
		"": false, ".": false, "..": false, "a/b": false, "a\nb": false,
	} {
		if isElement(name) != want {
			t.Errorf("%q: %t", name, !want)
		}
	}
}
