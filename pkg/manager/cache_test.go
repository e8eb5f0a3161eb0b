package manager

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// testCache is the limit of the tests' managers, and testShare that of one pod.
	testCache = 16000
	testShare = testCache / podShare
)

// sized returns a ConfigMap that uses so many bytes in the cache.
func sized(name string, takes int) *corev1.ConfigMap {
	return configMap(name, strings.Repeat("x", takes-objectMemory-keyMemory-len("k")))
}

// bound has a limit of testCache bytes. Each pod has its own account.
func bound() Options {
	return Options{ChangeDetection: Watch, Accounts: true, MaxCachedSize: testCache}
}

func ofAccount(name string) volume.Pod { return podOf(types.UID(name), name) }

// read registers a volume and returns what its publish gets.
func (e *env) read(pod volume.Pod, volumeID string, ref volume.Ref) (*volume.Object, error) {
	e.t.Helper()
	e.RegisterPod(pod, volumeID, []volume.Ref{ref})
	return e.await(e.t.Context(), pod, ref)
}

func (e *env) mustRead(pod volume.Pod, volumeID string, ref volume.Ref) *volume.Object {
	e.t.Helper()
	obj, err := e.read(pod, volumeID, ref)
	if err != nil {
		e.t.Fatalf("%s for pod %s: %v", ref, pod.Name, err)
	}
	return obj
}

// wantCached waits until everything is idle, and checks the bytes in the cache.
func (e *env) wantCached(want int64) {
	e.t.Helper()
	synctest.Wait()
	if got := e.CachedBytes(); got != want {
		e.t.Errorf("%d bytes are cached, want %d", got, want)
	}
}

func wantFull(t *testing.T, err error, text string) {
	t.Helper()
	if _, ok := errors.AsType[*FullError](err); !ok || err.Error() != text {
		t.Errorf("got %v, want a FullError %s", err, text)
	}
}

// fill fills the cache with the objects of mounted volumes, up to 15,000 of testCache bytes.
func (e *env) fill() {
	e.t.Helper()
	for i := range 15 {
		e.api.put(sized(fmt.Sprint("fill-", i), 1000))
		p := ofAccount(fmt.Sprint("filler-", i))
		e.mustRead(p, "v", configMapRef(fmt.Sprint("fill-", i)))
		e.MarkMounted(p, "v")
	}
	e.wantCached(15000)
}

// TestFullCache: a new volume gets nothing, and nothing of its objects remains.
func TestFullCache(t *testing.T) {
	inBubbles(t, bound(), all, func(t *testing.T, e *env) {
		e.fill()
		e.api.put(sized("app", 1001))
		p := ofAccount("new")
		_, err := e.read(p, "v", configMapRef("app"))
		wantFull(t, err, `ConfigMap "ns/app" takes 1001 bytes of memory, the node's other objects 15000, together more than 16000 (--max-cached-size)`)
		e.UnregisterPod(p, "v")
		e.wantCached(15000)
		e.wantWatches(configMapRef("app"), 0)

		e.api.put(sized("app", 1000))
		e.mustRead(p, "v", configMapRef("app"))
		e.wantCached(16000)
		e.UnregisterPod(p, "v")
		e.UnregisterPod(ofAccount("filler-3"), "v")
		e.wantCached(14000)
	})
}

// An object that did not exist at the start of a publish is refused when it appears, as one that existed. Once the volume is mounted, none
// is refused.
func TestFullCacheForAnObjectThatComes(t *testing.T) {
	inBubbles(t, bound(), all, func(t *testing.T, e *env) {
		e.fill()
		p, ref := ofAccount("new"), configMapRef("app")
		e.RegisterPod(p, "v", []volume.Ref{ref})
		if _, err := e.await(t.Context(), p, ref); err == nil {
			t.Fatal("no error")
		}
		gone := ofAccount("gone") // its mounted volume does not count any more
		gone.ServiceAccount = p.ServiceAccount
		e.RegisterPod(gone, "v", []volume.Ref{ref})
		e.MarkMounted(gone, "v")
		e.UnregisterPod(gone, "v")
		e.api.put(sized("app", 1500))
		e.Manager.Refresh(p, []volume.Ref{ref})
		synctest.Wait()
		_, err := e.Manager.GetObject(p, ref)
		wantFull(t, err, `ConfigMap "ns/app" takes 1500 bytes of memory, the node's other objects 15000, together more than 16000 (--max-cached-size)`)
		e.MarkMounted(p, "v")
		if obj, err := e.await(t.Context(), p, ref); err != nil || obj == nil {
			t.Errorf("got %v, %v", obj, err)
		}
		e.wantCached(16500)
	})
}

// TestPodsShareOfTheCache: a pod's objects may use an eighth, whether other pods reference them or not.
func TestPodsShareOfTheCache(t *testing.T) {
	inBubbles(t, bound(), all, func(t *testing.T, e *env) {
		p := ofAccount("p")
		e.api.put(sized("first", testShare-1000))
		e.api.put(sized("fits", 1000))
		e.api.put(sized("more", 1001))
		e.mustRead(p, "v1", configMapRef("first"))
		e.MarkMounted(p, "v1")
		const text = `ConfigMap "ns/more" takes 1001 bytes of memory, the pod's other objects 1000, together more than 2000 (an eighth of --max-cached-size)`
		other := ofAccount("other")
		other.ServiceAccount = p.ServiceAccount
		for _, state := range []string{"not cached", "cached"} {
			_, err := e.read(p, "v2", configMapRef("more"))
			wantFull(t, err, text)
			e.UnregisterPod(p, "v2")
			e.wantCached(map[string]int64{"not cached": 1000, "cached": 2001}[state])
			e.mustRead(other, "v", configMapRef("more"))
		}
		e.mustRead(p, "v2", configMapRef("fits"))
		e.mustRead(p, "v3", configMapRef("first")) // it has that object already
		e.UnregisterPod(p, "v1")
		e.UnregisterPod(p, "v3")
		e.mustRead(p, "v3", configMapRef("fits"))
		e.UnregisterPod(other, "v")
		e.wantCached(1000)
	})
}

// TestTheShareOfOnePodIsEnough: an object that two pods wait for is cached for the one whose share has room.
func TestTheShareOfOnePodIsEnough(t *testing.T) {
	inBubbles(t, bound(), all, func(t *testing.T, e *env) {
		p, other, ref := ofAccount("p"), ofAccount("other"), configMapRef("late")
		other.ServiceAccount = p.ServiceAccount
		e.api.put(sized("first", 1000))
		e.mustRead(p, "v1", configMapRef("first"))
		for _, pod := range []volume.Pod{p, other} {
			e.RegisterPod(pod, "v2", []volume.Ref{ref})
		}
		synctest.Wait()
		e.api.put(sized("late", testShare-999))
		e.Manager.Refresh(other, []volume.Ref{ref})
		synctest.Wait()
		if obj, err := e.await(t.Context(), other, ref); err != nil || obj == nil {
			t.Errorf("got %v, %v", obj, err)
		}
		_, err := e.Manager.GetObject(p, ref)
		wantFull(t, err, `ConfigMap "ns/late" takes 1001 bytes of memory, the pod's other objects 1000, together more than 2000 (an eighth of --max-cached-size)`)
	})
}

// TestMountedVolumesAreNeverRefused: after a restart with a smaller limit, and beside volumes that are refused.
func TestMountedVolumesAreNeverRefused(t *testing.T) {
	inBubbles(t, bound(), all, func(t *testing.T, e *env) {
		var refs []volume.Ref
		for i := range 20 {
			e.api.put(sized(fmt.Sprint("app-", i), 1000))
			refs = append(refs, configMapRef(fmt.Sprint("app-", i)))
		}
		p := ofAccount("p")
		e.MarkMounted(p, "v")
		readAll := func(cached int64) {
			e.RegisterPod(p, "v", refs)
			for _, ref := range refs {
				if _, err := e.await(t.Context(), p, ref); err != nil {
					t.Error(err)
				}
			}
			e.wantCached(cached)
		}
		readAll(20000)
		e.api.put(sized("none", 700))
		_, err := e.read(p, "v2", configMapRef("none"))
		wantFull(t, err, `ConfigMap "ns/none" takes 700 bytes of memory, the pod's other objects 20000, together more than 2000 (an eighth of --max-cached-size)`)
		e.UnregisterPod(p, "v2")
		_, err = e.read(ofAccount("q"), "v", configMapRef("none"))
		wantFull(t, err, `ConfigMap "ns/none" takes 700 bytes of memory, the node's other objects 20000, together more than 16000 (--max-cached-size)`)

		// Also objects that appear later and are not cached yet.
		refs = append(refs, configMapRef("none"))
		readAll(20700)
		e.UnregisterPod(p, "v")
		e.UnregisterPod(ofAccount("q"), "v")
		e.wantCached(0)
	})
}

// TestABurstOfPodsStaysWithinTheCache: they ask at the same time, and none is checked before the objects of the others count. Whoever was
// refused holds nothing, so the others fit when the kubelet tries again.
func TestABurstOfPodsStaysWithinTheCache(t *testing.T) {
	inBubbleWith(t, bound(), func(t *testing.T, e *env) {
		const pods, fit = 108, testCache / testShare
		var mu sync.Mutex
		var most int64
		published := map[int]bool{}
		e.Subscribe(func(volume.ServiceAccount, volume.Ref) {
			mu.Lock()
			defer mu.Unlock()
			most = max(most, e.CachedBytes())
		})
		publish := func(i int) {
			p, refs := ofAccount(fmt.Sprint("p", i)), []volume.Ref{configMapRef(fmt.Sprint("a-", i)), configMapRef(fmt.Sprint("b-", i))}
			e.RegisterPod(p, "v", refs)
			_, first := e.await(t.Context(), p, refs[0])
			_, last := e.await(t.Context(), p, refs[1])
			mu.Lock()
			defer mu.Unlock()
			switch failure := errors.Join(first, last); {
			case failure == nil:
				published[i] = true
				e.MarkMounted(p, "v")
			case errors.As(failure, new(*FullError)):
				e.UnregisterPod(p, "v")
			default:
				t.Error(failure)
			}
		}
		var running sync.WaitGroup
		for i := range pods {
			e.api.put(sized(fmt.Sprint("a-", i), 1000))
			e.api.put(sized(fmt.Sprint("b-", i), 1000))
			running.Go(func() { publish(i) })
		}
		running.Wait()
		mu.Lock() // a change may still be reported
		if len(published) > fit || most > testCache {
			t.Errorf("%d of %d published, at most %d bytes", len(published), pods, most)
		}
		mu.Unlock()
		e.wantCached(int64(len(published)) * testShare)
		for i := 0; i < pods && len(published) < fit; i++ {
			if !published[i] {
				publish(i)
			}
		}
		e.wantCached(testCache)
	})
}
