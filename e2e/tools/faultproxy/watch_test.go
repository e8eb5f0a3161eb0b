package faultproxy

import (
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// openWatch opens a watch through a typed client, reads its initial state and the event after it, and returns their
// resourceVersions.
func openWatch(t *testing.T, p *Proxy) (watch.Interface, []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := p.WriteKubeconfig(path, "token"); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	w, err := c.CoreV1().ConfigMaps("ns").Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=app", SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	var versions []string
	for range 2 {
		versions = append(versions, version(t, <-w.ResultChan()))
	}
	return w, versions
}

func version(t *testing.T, e watch.Event) string {
	t.Helper()
	cm, ok := e.Object.(*corev1.ConfigMap)
	if !ok {
		t.Fatalf("event = %+v, want one of a ConfigMap", e)
	}
	return cm.ResourceVersion
}

func TestStaleState(t *testing.T) {
	p := start(t, Options{})
	first, old := openWatch(t, p)
	<-first.ResultChan()
	_, newer := openWatch(t, p)
	if newer[0] == old[0] {
		t.Fatalf("the second state has the version of the first, %s", old[0])
	}
	inject(t, p, Stale)
	if got := version(t, <-first.ResultChan()); got != "3" {
		t.Errorf("the open watch got version %s, want 3 again", got)
	}
	w, again := openWatch(t, p)
	if again[0] != old[0] || again[1] != old[1] {
		t.Errorf("state = %v, want the oldest, %v", again, old)
	}
	inject(t, p, None)
	if e, open := <-w.ResultChan(); open {
		t.Errorf("event = %+v, want the end of the watch that was stale", e)
	}
}

func TestStalledWatch(t *testing.T) {
	p := start(t, Options{})
	inject(t, p, Stalled)
	const lasts = 200 * time.Millisecond
	begin, over := time.Now(), make(chan error, 1)
	time.AfterFunc(lasts, func() { over <- p.Inject(None) })
	w, _ := openWatch(t, p)
	if got := version(t, <-w.ResultChan()); got != "3" {
		t.Errorf("the event after the state has version %s, want 3", got)
	}
	if took := time.Since(begin); took < lasts {
		t.Errorf("the events came after %s, in the fault", took)
	}
	if err := <-over; err != nil {
		t.Error(err)
	}
}
