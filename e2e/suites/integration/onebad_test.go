package integration

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	goodVolumes = 99
	// slower is by how much one bad volume may slow the others down. It is half as much again
	// as the worst that was seen beside four processes that never stop computing.
	slower = 3
	// longer is how much longer the slowest sample with the bad volume may take than a few
	// times the slowest without it.
	longer = time.Second
	// samples of publishes and of updates are taken in each round.
	samples = 12
	// churnPause is the time between two changes of the bad volume's object, retryPause
	// between two tries of a publish. The kubelet's first is 500 ms, and doubles.
	churnPause, retryPause = 20 * time.Millisecond, 100 * time.Millisecond
)

// badVolume is a way for a volume to be bad.
type badVolume struct {
	name string
	// object is what the object is set to over and over, with the bad volume there and
	// without it: what the API server and the watch cost is not the bad volume's.
	object func(i int) map[string]string
	// spoil makes a bad volume and returns what removes it.
	spoil func(b *comparison) (end func())
}

// TestOneBadVolume compares how long publishes and updates of 99 volumes take with and
// without another one that fails all the time, in rounds that alternate. Without it, that
// one is a second plugin's: so what it costs the machine is the same on both sides.
func TestOneBadVolume(t *testing.T) {
	const account = "one-bad"
	kubeconfig, args := scopedAccount(t, account), []string{"-v=2", "--max-volume-size=64Ki"}
	n, second := newNodeAs(t, kubeconfig, args...), newNodeAs(t, kubeconfig, args...)
	n.allowReading(account)
	second.namespace = n.namespace
	b := &comparison{node: n, elsewhere: newNamespace(t)}
	b.apart = &comparison{node: second, elsewhere: b.elsewhere}
	b.publishGood()
	for _, bad := range []badVolume{
		{"missing object", smallObject, (*comparison).missingObject},
		{"full tmpfs", pagesObject, (*comparison).fullTmpfs},
		{"forbidden object", smallObject, (*comparison).forbiddenObject},
	} {
		t.Run(bad.name, func(t *testing.T) {
			b.t, b.apart.t = t, t
			b.compare(bad)
		})
	}
}

// comparison are the good volumes, each of an object of its own.
type comparison struct {
	*node
	good []*harness.Volume
	// elsewhere is a namespace where the plugin may read nothing.
	elsewhere string
	// apart is a second plugin, with bad volumes only.
	apart *comparison
	turn  int // of the next sample
	value int
}

func goodObject(i int) string { return fmt.Sprint("good-", i) }

func smallObject(i int) map[string]string { return map[string]string{"key": fmt.Sprint(i)} }

// pagesObject fits a volume of 64 KiB.
func pagesObject(i int) map[string]string {
	return map[string]string{"key": fmt.Sprintf("%060000d", i)}
}

func (b *comparison) publishGood() {
	b.t.Helper()
	for i := range goodVolumes {
		b.configMap(goodObject(i), smallObject(0))
		v := b.short(goodObject(i))
		b.publishesSoon(v)
		b.good = append(b.good, v)
	}
}

// timings are the samples of one side, by rounds.
type timings struct{ publish, update [][]time.Duration }

// compare takes samples in pairs of rounds, and fails if the bad volume slowed the others
// down.
func (b *comparison) compare(bad badVolume) {
	b.t.Helper()
	var with, without timings
	for pair := range harness.Scaled(4, 80) {
		if pair%2 == 0 {
			b.round(bad, false, &without)
			b.round(bad, true, &with)
		} else {
			b.round(bad, true, &with)
			b.round(bad, false, &without)
		}
	}
	notSlower(b.t, "publish", without.publish, with.publish)
	notSlower(b.t, "update", without.update, with.update)
}

// notSlower compares medians and 90th percentiles of rounds that were made one after the
// other, and takes the pair in the middle: what else runs on the machine for a moment hits
// single rounds, a bad volume all. These leave out whether few samples take very long, so
// the slowest ones are compared too, but for a single one with the bad volume.
func notSlower(t *testing.T, what string, without, with [][]time.Duration) {
	t.Helper()
	before, now := slices.Max(slices.Concat(without...)), slowestButOne(slices.Concat(with...))
	half, most := ratioOfMedianPair(without, with, 50), ratioOfMedianPair(without, with, 90)
	t.Logf("%s, %d rounds of %d a side: p50 x %.2f, p90 x %.2f, slowest %s without, slowest but one %s with",
		what, len(with), samples, half, most, before.Round(time.Millisecond), now.Round(time.Millisecond))
	if half > slower || most > slower {
		t.Errorf("%s: p50 is %.2f and p90 %.2f times as long with the bad volume, want %d at most", what, half, most, slower)
	}
	if limit := longer + 3*before; now > limit {
		t.Errorf("%s: two took %s with the bad volume, want %s at most", what, now, limit)
	}
}

func slowestButOne(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)-2]
}

func ratioOfMedianPair(without, with [][]time.Duration, p int) float64 {
	ratios := make([]float64, 0, len(with))
	for i := range with {
		ratios = append(ratios, float64(percentile(with[i], p))/float64(percentile(without[i], p)))
	}
	slices.Sort(ratios)
	return (ratios[(len(ratios)-1)/2] + ratios[len(ratios)/2]) / 2
}

func percentile(all []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)*p/100]
}

// round takes samples while the bad volume's object changes.
func (b *comparison) round(bad badVolume, spoiled bool, into *timings) {
	b.t.Helper()
	b.configMap("bad", bad.object(0))
	if spoiled {
		defer bad.spoil(b)()
	} else {
		defer bad.spoil(b.apart)()
	}
	defer b.churn(bad.object)()
	var publish, update []time.Duration
	for range samples {
		update = append(update, b.updateOne())
		publish = append(publish, b.publishOne())
	}
	into.publish, into.update = append(into.publish, publish), append(into.update, update)
}

// churn changes the bad volume's object at a rate until the returned function is called.
func (b *comparison) churn(object func(i int) map[string]string) (stop func()) {
	return b.repeat(churnPause, func(i int) error {
		_, err := b.tryConfigMap(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Data: object(1000 + i)})
		return err
	})
}

// repeat calls f at every interval, in a goroutine that the returned function ends. The
// first error ends the calls and fails the test.
func (b *comparison) repeat(interval time.Duration, f func(i int) error) (stop func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	var running sync.WaitGroup
	var err error
	running.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			if err = f(i); err != nil {
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
		if err != nil {
			b.t.Error(err)
		}
	}
}

// updateOne changes a good volume's object and returns how long it takes from the begin
// of the request until that shows. The event may well overtake the API server's answer.
func (b *comparison) updateOne() time.Duration {
	b.t.Helper()
	b.value++
	i := b.turn % goodVolumes
	begin := time.Now()
	b.configMap(goodObject(i), smallObject(b.value))
	b.arrives(b.good[i], "key", fmt.Sprint(b.value), soon)
	return time.Since(begin)
}

// publishOne publishes a good volume in the place of another and returns how long that
// took.
func (b *comparison) publishOne() time.Duration {
	b.t.Helper()
	i := b.turn % goodVolumes
	b.turn++
	b.mustUnpublish(b.good[i])
	b.good[i] = b.short(goodObject(i))
	begin := time.Now()
	b.mustPublish(b.good[i])
	return time.Since(begin)
}

// missingObject is a live volume that lost one of its two objects, so that each change
// of the other one fails.
func (b *comparison) missingObject() (end func()) {
	b.t.Helper()
	b.configMap("lost", map[string]string{"lost": ""})
	v := b.volume(map[string]string{"sources": "- configMap: {name: bad}\n- configMap: {name: lost}\n"})
	b.mustPublish(v)
	b.deleteConfigMap("lost")
	b.hasCondition(v, "not found")
	return func() { b.hasCondition(v, "not found"); b.mustUnpublish(v) }
}

// fullTmpfs is a live volume that readers of old generations keep full.
func (b *comparison) fullTmpfs() (end func()) {
	b.t.Helper()
	v := b.short("bad")
	b.mustPublish(v)
	_, release := b.fillByReaders(v, "bad", pagesObject, func(i int) error { return b.showsJust(v, pagesObject(i)) })
	return func() {
		b.hasCondition(v, "no space left on device")
		release()
		b.mustUnpublish(v)
	}
}

// forbiddenObject is a volume whose publish is repeated in a namespace where the plugin
// may read nothing. The pod is always the same: of one pod's events, more than 25 are not
// sent, and it is not their cost to the API server that is measured here.
func (b *comparison) forbiddenObject() (end func()) {
	b.t.Helper()
	v := harness.NewVolume(b.elsewhere, "pod", map[string]string{"configMap": "bad"})
	v.UID = "one-pod"
	stop := b.repeat(retryPause, func(int) error {
		wantStatus(b.t, b.Publish(b.t.Context(), v), codes.PermissionDenied, "is forbidden")
		return nil
	})
	return func() { stop(); b.mustUnpublish(v) }
}
