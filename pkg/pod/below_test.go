package pod

import (
	"fmt"
	"path"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

// mounting returns a container with mounts in the form name:path or name:path:subPath. A subPath of $(X) is a subPathExpr.
func mounting(mounts ...string) corev1.Container {
	c := corev1.Container{Name: "c"}
	for _, text := range mounts {
		parts := append(strings.Split(text, ":"), "")
		m := corev1.VolumeMount{Name: parts[0], MountPath: parts[1], SubPath: parts[2]}
		if strings.HasPrefix(m.SubPath, "$") {
			m.SubPath, m.SubPathExpr = "", m.SubPath
		}
		c.VolumeMounts = append(c.VolumeMounts, m)
	}
	return c
}

// belowIn finds the mounts below each volume of a spec.
func belowIn(spec *corev1.PodSpec) func(name string) []Below {
	return func(name string) []Below { return MountsBelow(spec, field.NewPath("spec"))[name] }
}

func TestMountsBelow(t *testing.T) {
	for _, test := range []struct {
		name   string
		mounts []string
		want   []string // path < field of the mount, > field of the volume's mount, and how that is mounted
	}{
		{"none", []string{"v:/etc/app", "e:/etc"}, nil},
		{"one below", []string{"v:/etc/app", "e:/etc/app/tls"}, []string{"tls < 1 > 0"}},
		{"in any order", []string{"e:/etc/app/tls", "v:/etc/app"}, []string{"tls < 0 > 1"}},
		{"three deep", []string{"v:/etc/app", "e:/etc/app/a/b/c"}, []string{"a/b/c < 1 > 0"}},
		{"a path that begins alike", []string{"v:/etc/app", "e:/etc/app-tls", "e:/etc/application/x"}, nil},
		{"beside such a path", []string{"v:/a", "e:/a-b", "f:/a/c"}, []string{"c < 2 > 0"}},
		{"the last mount at a path", []string{"e:/a", "v:/a", "f:/a/x"}, []string{"x < 2 > 1"}},
		{"not the last mount at a path", []string{"v:/a", "e:/a", "f:/a/x"}, nil},
		{"below a mount below", []string{"v:/a", "e:/a/b", "f:/a/b/c", "f:/a/b-c"}, []string{"b < 1 > 0", "b-c < 3 > 0"}},
		{"not clean", []string{"v:/etc//app/", "e:/etc/app/x/../tls/"}, []string{"tls < 1 > 0"}},
		{"relative", []string{"v:etc/app", "e:etc/app/tls"}, []string{"tls < 1 > 0"}},
		{"out of the container", []string{"v:/../a", "e:/a/../../a/b"}, []string{"b < 1 > 0"}},
		{"the root", []string{"v:/", "e:/b/c"}, []string{"b/c < 1 > 0"}},
		{"itself", []string{"v:/a", "v:/a/b"}, []string{"b < 1 > 0"}},
		{"mounted twice", []string{"v:/a", "v:/b", "e:/a/x", "e:/b/y"}, []string{"x < 2 > 0", "y < 3 > 1"}},
		{"a mount by subPath below", []string{"v:/a", "e:/a/f:key"}, []string{"f < 1 > 0"}},
		{"below a subPath", []string{"v:/a:conf", "e:/a/x"}, []string{"conf/x < 1 > 0 subPath"}},
		{"below a subPath that is not clean", []string{"v:/a:./conf/", "e:/a/x"}, []string{"conf/x < 1 > 0 subPath"}},
		{"below a subPathExpr", []string{"v:/a:$(X)", "e:/a/x"}, []string{"x < 1 > 0 subPathExpr"}},
		{"below another volume", []string{"v:/v", "e:/e", "f:/e/x"}, nil},
		{"a path that no kernel takes", []string{"v:/a", "e:/a/" + strings.Repeat("x/", 1<<19)}, nil},
	} {
		spec := &corev1.PodSpec{Containers: []corev1.Container{mounting(test.mounts...)}}
		var got []string
		for _, b := range belowIn(spec)("v") {
			text := path.Join(b.In, b.Path) + " < " + b.Field + " > " + b.Of
			text = strings.NewReplacer("spec.containers[0].volumeMounts[", "", "].mountPath", "", "]", "").Replace(text)
			got = append(got, strings.TrimSpace(text+" "+b.By))
		}
		expect.Equal(t, test.name, got, test.want)
	}
}

// Each container has its own mounts. Ephemeral containers come too late.
func TestMountsBelowInAllContainers(t *testing.T) {
	spec := &corev1.PodSpec{
		InitContainers: []corev1.Container{mounting("v:/a", "e:/a/i")},
		Containers:     []corev1.Container{mounting("v:/a", "e:/b/x"), mounting("v:/b", "e:/b/y")},
		EphemeralContainers: []corev1.EphemeralContainer{
			{EphemeralContainerCommon: corev1.EphemeralContainerCommon(mounting("v:/a", "e:/a/z"))},
		},
	}
	var got []string
	for _, b := range belowIn(spec)("v") {
		got = append(got, b.Path+" "+b.Field+" "+b.Of)
	}
	want := []string{
		"i spec.initContainers[0].volumeMounts[1].mountPath spec.initContainers[0].volumeMounts[0]",
		"y spec.containers[1].volumeMounts[1].mountPath spec.containers[1].volumeMounts[0]",
	}
	expect.Equal(t, "mounts below", got, want)
}

func TestResolveMountsBelow(t *testing.T) {
	const path = "spec.containers[0].volumeMounts[1].mountPath"
	for _, test := range []struct {
		name, attributes string
		mounts           []string
		want             string // the directories, or the error
	}{
		{"none", "", []string{"v:/a"}, "[] []"},
		{"one", "", []string{"v:/a", "e:/a/tls"}, "[tls] []"},
		{"beside those of the attribute", "[x]", []string{"v:/a", "e:/a/tls"}, "[tls x] []"},
		{"one of the writer's names", "", []string{"v:/a", "e:/a/..data"}, path + `: Invalid value: "/a/..data": must not start with ".."`},
		{"below a directory of files", "", []string{"v:/a", "e:/a/conf/tls"}, path +
			`: Invalid value: "conf/tls": must not be "conf" or below it, as the file "conf/k" of sources[0].configMap.items[0].path is: mount elsewhere, or map the key to another path`},
		{"below a directory of files in place", "InPlace", []string{"v:/a", "e:/a/conf/tls"}, "[] [conf/tls]"},
		{"below a subPath", "", []string{"v:/a:conf", "e:/a/tls"}, path +
			`: Forbidden: must not lie below spec.containers[0].volumeMounts[0], which mounts "conf" of the volume by subPath: each update would take this mount away; set writeStrategy: InPlace in the volume's attributes`},
		{"below a subPath in place", "InPlace", []string{"v:/a:conf", "e:/a/tls"}, "[] [conf/tls]"},
		{"below a subPath of no file in place", "InPlace", []string{"v:/a:d", "e:/a/tls"}, "[d/tls] []"},
		{"below a subPathExpr in place", "InPlace", []string{"v:/a:$(X)", "e:/a/tls"}, path +
			`: Forbidden: must not lie below spec.containers[0].volumeMounts[0], which mounts the volume by subPathExpr: which directory that is can't be known; use subPath`},
	} {
		attributes := map[string]string{"sources": "[{configMap: {name: m, items: [{key: k, path: conf/k}]}}]"}
		switch test.attributes {
		case "InPlace":
			attributes["writeStrategy"] = test.attributes
		case "":
		default:
			attributes["directories"] = test.attributes
		}
		spec := must.Get(volume.Parse(attributes, testPod))(t)
		before := len(spec.Directories)
		in := &corev1.PodSpec{Containers: []corev1.Container{mounting(test.mounts...)}}
		resolved, _, err := Resolve(spec, nil, nil, belowIn(in), "v", nil)
		got := fmt.Sprint(err)
		if err == nil {
			root, inner := resolved.MountPoints()
			got = fmt.Sprintf("%s %s", root, inner)
		}
		if got != test.want || len(spec.Directories) != before {
			t.Errorf("%s: got  %s\nwant %s", test.name, got, test.want)
		}
	}
}

// TestLongSubPath: a container may mount a volume by a long subPath, and have thousands of mounts below that. The paths together would take
// gigabytes, so they are counted before they are made.
func TestLongSubPath(t *testing.T) {
	for _, test := range []struct {
		subPath, mounts int
		want            string
	}{
		{400_000, 1000, "must have at most 4096 bytes"},
		{4000, 3000, "errAllow"},
	} {
		c := mounting("v:/a:" + strings.TrimSuffix(strings.Repeat("d234567/", test.subPath/8), "/"))
		for i := range test.mounts {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "e", MountPath: fmt.Sprint("/a/", i)})
		}
		in := &corev1.PodSpec{Containers: []corev1.Container{c}}
		spec := must.Get(volume.Parse(map[string]string{"configMap": "m", "writeStrategy": "InPlace"}, testPod))(t)
		allow := func(n volume.Names) error {
			if n.Added < 4<<20 {
				return nil
			}
			return fmt.Errorf("errAllow: %d bytes are added", n.Added)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := Resolve(spec, nil, nil, belowIn(in), "v", allow)
		runtime.ReadMemStats(&after)
		expect.Has(t, fmt.Sprintf("a subPath of %d bytes", test.subPath), fmt.Sprint(err), test.want)
		expect.Between(t, fmt.Sprintf("bytes for a subPath of %d and %d mounts", test.subPath, test.mounts), after.TotalAlloc-before.TotalAlloc, 0, 8<<20)
	}
}
