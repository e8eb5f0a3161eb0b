package manager

import (
	"context"
	"fmt"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// BenchmarkRegister registers and unregisters a volume of objects that another pod
// references already: what a publish that asks nothing of the API server costs here.
func BenchmarkRegister(b *testing.B) {
	for _, n := range []int{1, 3, 30} {
		b.Run(fmt.Sprintf("refs=%d", n), func(b *testing.B) {
			m, refs := benchManager(b, n)
			pod := pod("p")
			b.ReportAllocs()
			for b.Loop() {
				m.RegisterPod(pod, "v", refs)
				m.UnregisterPod(pod, "v")
			}
		})
	}
}

// BenchmarkGetObject reads one object that is known.
func BenchmarkGetObject(b *testing.B) {
	m, refs := benchManager(b, 1)
	pod := pod("other")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.GetObject(pod, refs[0]); err != nil {
			b.Fatal(err)
		}
	}
}

// benchManager returns a manager that runs and knows the objects of n references, all
// referenced by one pod.
func benchManager(b *testing.B, n int) (*Manager, []volume.Ref) {
	b.Helper()
	api := newAPIServer(b)
	m, err := New(Options{Client: api.client(), Requests: api.paced, ResyncInterval: testResync})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Errorf("Run: %v", err)
		}
	})
	refs := make([]volume.Ref, 0, n)
	for i := range n {
		name := fmt.Sprintf("s%d", i)
		api.put(secret(name, "1"))
		refs = append(refs, secretRef(name))
	}
	changed := make(chan struct{}, n)
	m.Subscribe(func(volume.ServiceAccount, volume.Ref) { changed <- struct{}{} })
	m.RegisterPod(pod("other"), "v", refs)
	for range refs { // each of them syncs once
		<-changed
	}
	return m, refs
}
