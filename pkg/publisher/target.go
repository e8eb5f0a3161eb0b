package publisher

import (
	"fmt"
	"path/filepath"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// maxQuoted bounds what an error repeats of a path, in bytes: a request may hold megabytes.
const maxQuoted = 256

// targetForm is the only form of a target path that a kubelet asks for, below its
// directory. What has another may be a place of somebody else, as an emptyDir of a pod.
func targetForm(kubeletDir, uid, name string) string {
	return filepath.Join(kubeletDir, "pods") + "/" + uid + "/volumes/kubernetes.io~csi/" + name + "/mount"
}

// checkForm says whether a target path lies where the kubelet puts CSI volumes, whichever
// the pod. It looks at no file.
func checkForm(kubeletDir, target string) error {
	if uid, name := targetParts(kubeletDir, target); target == targetForm(kubeletDir, uid, name) && isElement(uid) && isElement(name) {
		return nil
	}
	return invalidTarget(target, targetForm(kubeletDir, "<pod UID>", "<volume name>"))
}

// checkTarget says whether a target path lies where the kubelet puts the CSI volumes of
// this pod and no other.
func checkTarget(kubeletDir string, pod volume.Pod, target string) error {
	if !isElement(string(pod.UID)) {
		return fmt.Errorf("pod UID: Invalid value: %.*q: must be the name of a directory", maxQuoted, pod.UID)
	}
	if podUID(kubeletDir, target) == string(pod.UID) && checkForm(kubeletDir, target) == nil {
		return nil
	}
	return invalidTarget(target, targetForm(kubeletDir, string(pod.UID), "<volume name>"))
}

// targetParts returns what stands in a path where a target's pod and volume do.
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

// isElement says whether s can name a directory within another, and stand in a log and an
// error as it is.
func isElement(s string) bool {
	return s != "" && len(s) <= unix.NAME_MAX && s != "." && s != ".." && !strings.ContainsFunc(s, func(r rune) bool { return r == '/' || !unicode.IsPrint(r) })
}

func invalidTarget(target, form string) error {
	if len(target) > maxQuoted {
		return fmt.Errorf("Invalid value: a path of %d bytes: must be %s", len(target), form)
	}
	return fmt.Errorf("Invalid value: %q: must be %s", target, form)
}
