package publisher

import (
	"fmt"
	"path/filepath"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// maxQuoted limits, in bytes, what an error repeats of a path. A request may hold megabytes.
const maxQuoted = 256

// targetForm returns the only form of target path that a kubelet uses. A path of another form may belong to somebody else, for example to a
// pod's emptyDir.
func targetForm(kubeletDir, uid, name string) string {
	return filepath.Join(kubeletDir, "pods") + "/" + uid + "/volumes/kubernetes.io~csi/" + name + "/mount"
}

// checkForm returns an error unless a target path has the form of the kubelet's CSI volumes, for any pod. It touches no file.
func checkForm(kubeletDir, target string) error {
	if uid, name := targetParts(kubeletDir, target); target == targetForm(kubeletDir, uid, name) && isElement(uid) && isElement(name) {
		return nil
	}
	return invalidTarget(target, targetForm(kubeletDir, "<pod UID>", "<volume name>"))
}

// checkTarget returns an error unless a target path has the form of this pod's CSI volumes.
func checkTarget(kubeletDir string, pod volume.Pod, target string) error {
	if !isElement(string(pod.UID)) {
		return fmt.Errorf("pod UID: Invalid value: %.*q: must be the name of a directory", maxQuoted, pod.UID)
	}
	if podUID(kubeletDir, target) == string(pod.UID) && checkForm(kubeletDir, target) == nil {
		return nil
	}
	return invalidTarget(target, targetForm(kubeletDir, string(pod.UID), "<volume name>"))
}

// targetParts returns the pod UID and the volume name of a target path, or empty strings.
func targetParts(kubeletDir, target string) (uid, name string) {
	parts := strings.Split(strings.TrimPrefix(target, filepath.Join(kubeletDir, "pods")+"/"), "/")
	if len(parts) != 5 {
		return "", ""
	}
	return parts[0], parts[3]
}

// podUID returns the UID of the pod that a target path names.
func podUID(kubeletDir, target string) string {
	uid, _ := targetParts(kubeletDir, target)
	return uid
}

// isElement reports whether s can be the name of a directory, and can be printed unchanged in a log and an error.
func isElement(s string) bool {
	return s != "" && len(s) <= unix.NAME_MAX && s != "." && s != ".." && !strings.ContainsFunc(s, func(r rune) bool { return r == '/' || !unicode.IsPrint(r) })
}

func invalidTarget(target, form string) error {
	if len(target) > maxQuoted {
		return fmt.Errorf("Invalid value: a path of %d bytes: must be %s", len(target), form)
	}
	return fmt.Errorf("Invalid value: %q: must be %s", target, form)
}
