package manager

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// largeObjects serves a ConfigMap of a size for each name, over a real HTTP/2 connection. It sends them from one slice.
func largeObjects(t *testing.T, size int) *httptest.Server {
	const placeholder = "app-000000"
	scheme := newAPIServer(t).scheme
	s := protobuf.NewSerializer(scheme, scheme)
	frame := func(kind string, obj kruntime.Object) []byte {
		var raw bytes.Buffer
		if err := s.Encode(obj, &raw); err != nil {
			t.Fatal(err)
		}
		e := metav1.WatchEvent{Type: kind, Object: kruntime.RawExtension{Raw: raw.Bytes()}}
		b, err := e.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
	}
	meta := metav1.ObjectMeta{Namespace: "ns", Name: placeholder, ResourceVersion: "100", UID: "u"}
	added := frame("ADDED", &corev1.ConfigMap{TypeMeta: typeMeta(volume.ConfigMap), ObjectMeta: meta, Data: map[string]string{"k": strings.Repeat("x", size)}})
	end := frame("BOOKMARK", &corev1.ConfigMap{TypeMeta: typeMeta(volume.ConfigMap), ObjectMeta: metav1.ObjectMeta{ResourceVersion: "100", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}})
	at := bytes.Index(added, []byte(placeholder))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
		w.WriteHeader(http.StatusOK)
		for _, b := range [][]byte{added[:at], []byte(name), added[at+len(placeholder):], end} {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// One pod names objects of 1 MB each, many times its share of the cache. Events are bounded before they are received, so the memory stays
// near that share until the manager refuses.
func TestMemoryBeforeTheCacheRefuses(t *testing.T) {
	const objects, limit, most = 64, 32 << 20, 48 << 20
	server := largeObjects(t, 1_000_000)
	paced := requests.New()
	base := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: StreamBuffer},
	}
	defer base.CloseIdleConnections()
	api, err := apiclient.New(&rest.Config{Host: server.URL, QPS: -1}, &http.Client{Transport: paced.Wrap(base, true)})
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(Options{Client: api, Requests: paced, ResyncInterval: time.Minute, MaxCachedSize: limit})
	if err != nil {
		t.Fatal(err)
	}
	var refs []volume.Ref
	for i := range objects {
		refs = append(refs, configMapRef(fmt.Sprintf("app-%06d", i)))
	}
	defer debug.SetGCPercent(debug.SetGCPercent(50)) // as the plugin
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	peak := before.HeapInuse
	measure := func() {
		runtime.ReadMemStats(&now)
		peak = max(peak, now.HeapInuse)
	}
	p := pod("p")
	m.RegisterPod(p, "v", refs)
	isRefused := func() bool {
		for _, ref := range refs {
			if _, err := m.GetObject(p, ref); errors.As(err, new(*FullError)) {
				return true
			}
		}
		return false
	}
	tick := time.Tick(time.Millisecond)
	for ; !isRefused(); measure() {
		<-tick
	}
	m.UnregisterPod(p, "v") // the publish has failed
	ended := make(chan struct{})
	go func() { m.running.Wait(); close(ended) }()
	for isRunning := true; isRunning; measure() { // what is still being received
		select {
		case <-ended:
			isRunning = false
		case <-tick:
		}
	}
	server.CloseClientConnections()
	grown := peak - before.HeapInuse
	t.Logf("%d objects of 1 MB: the heap grew by %d MiB; a pod's share of the cache is %d MiB", objects, grown>>20, limit/podShare>>20)
	// 4 MiB are the share, 2 what the transport buffers, and up to 12 are in flight. The rest is garbage, of which the race detector makes more.
	if grown > most {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
}

// A stalled connection ends the turn of its event after a second, so that other events don't wait for it.
func TestAStalledEventHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInFlight()
		first, err := f.take(t.Context(), maxInFlight+1) // counts as all there is
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		second, err := f.take(t.Context(), maxInFlight)
		if err != nil || time.Since(began) != inFlightTimeout {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		first() // it is too late, and must not free the room of the second
		if f.bytes.TryAcquire(1) {
			t.Error("there is room beside the second")
		}
		second()
		second()
		if !f.bytes.TryAcquire(maxInFlight) {
			t.Error("some room is not free again")
		}
	})
}
