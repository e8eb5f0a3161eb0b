package pod

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/volume"
)

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
		spec, err := volume.Parse(map[string]string{"configMap": "m", "writeStrategy": "InPlace"}, testPod)
		must(t, err)
		allow := func(n volume.Names) error {
			if n.Added < 4<<20 {
				return nil
			}
			return fmt.Errorf("errAllow: %d bytes are added", n.Added)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err = Resolve(spec, nil, nil, func(name string) []Below { return MountsBelow(in, field.NewPath("spec"))[name] }, "v", allow)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("a subPath of %d bytes: %.200v, want %q", test.subPath, err, test.want)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 8<<20 {
			t.Errorf("a subPath of %d bytes and %d mounts took %d KiB", test.subPath, test.mounts, took>>10)
		}
	}
}
