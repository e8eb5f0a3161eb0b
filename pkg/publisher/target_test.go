package publisher

import (
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
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
		if err := checkTarget("/k", volume.Pod{UID: "uid-1"}, target); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", target, got, want)
		}
	}
}
