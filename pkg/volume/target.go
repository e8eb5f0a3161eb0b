package volume

import (
	"fmt"
	"path"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/types"
)

// maxElement limits the name of a directory, in bytes (NAME_MAX of limits.h).
const maxElement = 255

// maxQuoted limits, in bytes, what an error repeats of a path. A request may hold megabytes.
const maxQuoted = 256

// ParseTarget returns the pod's UID and the volume's name of a target path. The error says which form a kubelet's target paths for CSI volumes
// have: a path of another form may belong to somebody else, for example to a pod's emptyDir. It touches no file.
func ParseTarget(kubeletDir, target string) (uid types.UID, name string, err error) {
	parts := strings.Split(strings.TrimPrefix(target, path.Join(kubeletDir, "pods")+"/"), "/")
	if len(parts) == 5 && isElement(parts[0]) && isElement(parts[3]) && target == targetForm(kubeletDir, parts[0], parts[3]) {
		return types.UID(parts[0]), parts[3], nil
	}
	return "", "", invalidTarget(target, targetForm(kubeletDir, "<pod UID>", "<volume name>"))
}

// CheckTarget returns an error unless a target path has the form of this pod's CSI volumes.
func (p Pod) CheckTarget(kubeletDir, target string) error {
	if !isElement(string(p.UID)) {
		return fmt.Errorf("pod UID: Invalid value: %.*q: must be the name of a directory", maxQuoted, p.UID)
	}
	if uid, _, err := ParseTarget(kubeletDir, target); err != nil || uid != p.UID {
		return invalidTarget(target, targetForm(kubeletDir, string(p.UID), "<volume name>"))
	}
	return nil
}

func targetForm(kubeletDir, uid, name string) string {
	return path.Join(kubeletDir, "pods") + "/" + uid + "/volumes/kubernetes.io~csi/" + name + "/mount"
}

// isElement reports whether s can be the name of a directory, and can be printed unchanged in a log and an error.
func isElement(s string) bool {
	return s != "" && len(s) <= maxElement && s != "." && s != ".." && !strings.ContainsFunc(s, func(r rune) bool { return r == '/' || !unicode.IsPrint(r) })
}

func invalidTarget(target, form string) error {
	if len(target) > maxQuoted {
		return fmt.Errorf("Invalid value: a path of %d bytes: must be %s", len(target), form)
	}
	return fmt.Errorf("Invalid value: %q: must be %s", target, form)
}
