package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/pkg/volume"
)

// canaryPods is how many pods TestCanaryObject has at first.
const canaryPods = 60

// canaried are volumes of pods that show the ConfigMap app, and app-canary as its canary.
type canaried struct {
	*node
	volumes []*harness.Volume
}

func newCanaried(t *testing.T, count int) *canaried {
	t.Helper()
	c := &canaried{node: newPlain(t, anyStatusPort)}
	c.configMap("app", map[string]string{"key": "stable"})
	c.add(count)
	return c
}

// add starts more pods.
func (c *canaried) add(count int) {
	c.t.Helper()
	var added []*harness.Volume
	for range count {
		added = append(added, c.volume(map[string]string{"sources": "[{configMap: {name: app}}, {configMap: {name: app-canary, canary: true}}, {versions: {path: versions.json}}]"}))
	}
	c.publishAll(added)
	c.volumes = append(c.volumes, added...)
}

// put writes the canary with an annotation; "" is none.
func (c *canaried) put(share string) {
	c.t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "app-canary"}, Data: map[string]string{"key": "canary"}}
	if share != "" {
		cm.Annotations = map[string]string{volume.CanaryAnnotation: share}
	}
	if _, err := c.tryConfigMap(cm); err != nil {
		c.t.Fatal(err)
	}
}

// patch changes only the annotation. It returns the time before the request.
func (c *canaried) patch(share string) time.Time {
	c.t.Helper()
	begin, patch := time.Now(), fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, volume.CanaryAnnotation, share)
	if _, err := shared.Client().CoreV1().ConfigMaps(c.namespace).Patch(c.t.Context(), "app-canary", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
	return begin
}

func wantedOf(v *harness.Volume, share int) string {
	if volume.RolloutPlace(types.UID(v.UID)) <= share {
		return "canary"
	}
	return "stable"
}

// shows waits until exactly the pods of a share show the canary. It returns the time from begin.
func (c *canaried) shows(share int, begin time.Time) time.Duration {
	c.t.Helper()
	left := slices.Clone(c.volumes)
	err := harness.Poll(c.t.Context(), soon, time.Millisecond, func() error {
		for len(left) > 0 {
			v := left[len(left)-1]
			if got, err := c.content(v, "key"); err != nil || got != wantedOf(v, share) {
				return fmt.Errorf("of %d%%, place %d holds %q, %v", share, volume.RolloutPlace(types.UID(v.UID)), got, err)
			}
			left = left[:len(left)-1]
		}
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return time.Since(begin)
}

// stays checks that at rest exactly the pods of a share show the canary, in the files, the versions and the status.
func (c *canaried) stays(share int) {
	c.t.Helper()
	c.shows(share, time.Now())
	c.allAre(c.volumes, "Current", "")
	report, err := c.report()
	if err != nil {
		c.t.Fatal(err)
	}
	for i, v := range c.volumes {
		isIn := wantedOf(v, share) == "canary"
		text, err := c.content(v, "versions.json")
		if err != nil || strings.Contains(text, "app-canary") != isIn {
			c.t.Errorf("volume %d, in the share: %t: the versions say %s, %v", i, isIn, text, err)
		}
	}
	for i := range report.Volumes {
		v := &report.Volumes[i]
		if v.Condition != "Current" || v.Abnormal || v.Reason != "" {
			c.t.Errorf("volume of %s: %s %s", v.Pod, v.Condition, v.Reason)
		}
	}
}

// reboot takes away the mounts of some volumes, and publishes them again.
func (c *canaried) reboot(volumes []*harness.Volume) {
	c.t.Helper()
	c.mustKill()
	for _, v := range volumes {
		if err := unix.Unmount(c.Target(v), unix.MNT_DETACH); err != nil {
			c.t.Fatal(err)
		}
	}
	c.mustStart()
	c.publishAll(volumes)
}

// TestCanaryObject: the canary is where its share says, whatever happens to the plugin, the pods and the object.
func TestCanaryObject(t *testing.T) {
	t.Parallel()
	c := newCanaried(t, canaryPods)
	c.put("0%")
	c.stays(0)
	var took []time.Duration
	for _, share := range []int{10, 50, 20, 100, 0, 40} {
		took = append(took, c.shows(share, c.patch(fmt.Sprint(share, "%"))))
		c.stays(share)
	}
	t.Logf("from the patch to the last of %d volumes: %s", len(c.volumes), took)
	c.mustKill()
	c.patch("10%")
	c.mustStart()
	c.shows(10, time.Now())
	c.add(20)
	c.stays(10)
	c.reboot(c.volumes[:30])
	c.stays(10)
	c.patch("ten")
	c.shows(0, time.Now())
	c.patch("30%")
	c.shows(30, time.Now())
	c.put("") // a request that drops the annotation
	c.shows(0, time.Now())
	c.patch("100%")
	c.shows(100, time.Now())
	c.removeObject("configMap", "app-canary")
	c.shows(0, time.Now())
	c.put("50%")
	c.shows(50, time.Now())
	c.mustKill()
	c.mustStart()
	c.stays(50)
	c.unpublishAll(c.volumes)
	c.wantNothingLeft()
}

// TestCanarySteps changes the world at random. At rest exactly the pods of the share show the canary.
func TestCanarySteps(t *testing.T) {
	t.Parallel()
	steps := 60
	if os.Getenv("REFVOL_LONG") != "" {
		steps = 2000
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 1))
	c := newCanaried(t, 20)
	c.put("50%")
	share, exists := 50, true
	for step := range steps {
		switch n := dice.IntN(12); {
		case n < 5 && exists:
			share = dice.IntN(101)
			c.patch(fmt.Sprint(share, "%"))
		case n < 5:
			share, exists = dice.IntN(101), true
			c.put(fmt.Sprint(share, "%"))
		case n == 5 && exists:
			share, exists = 0, false
			c.removeObject("configMap", "app-canary")
		case n == 6:
			share, exists = 0, true
			c.put([]string{"", "ten", "-1%"}[dice.IntN(3)])
		case n == 7:
			c.mustKill()
			c.mustStart()
		case n == 8:
			i := dice.IntN(len(c.volumes))
			c.reboot(c.volumes[i : i+1])
		case n == 9:
			c.mustUnpublish(c.volumes[0])
			c.volumes = c.volumes[1:]
			c.add(1)
		case n == 10:
			c.configMap("app", map[string]string{"key": "stable", "other": fmt.Sprint(step)})
		}
		c.shows(share, time.Now())
	}
	c.stays(share)
	c.unpublishAll(c.volumes)
	c.wantNothingLeft()
}
