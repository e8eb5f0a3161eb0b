package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// fakePods are the pods of an API server. watch is the present watch, and err is what a new one fails with. mu protects err.
type fakePods struct {
	list  []corev1.Pod
	watch *apiwatch.FakeWatcher
	mu    sync.Mutex
	err   error
}

func (f *fakePods) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fakePods) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: f.list}, nil
}

func (f *fakePods) Watch(context.Context, metav1.ListOptions) (apiwatch.Interface, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	f.watch = apiwatch.NewFake()
	return f.watch, nil
}

// IsWatchListSemanticsUnSupported makes client-go list the pods first.
func (*fakePods) IsWatchListSemanticsUnSupported() bool { return true }

// TestPodWatch: the pods are those of the last event. While no watch can begin, they are not known.
func TestPodWatch(t *testing.T) {
	handlers := utilruntime.ErrorHandlers
	utilruntime.ErrorHandlers = nil                         //nolint:reassign // The last of them waits for the time of the machine.
	defer func() { utilruntime.ErrorHandlers = handlers }() //nolint:reassign // As above.
	synctest.Test(t, func(t *testing.T) {
		pod := func(name, version string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, ResourceVersion: version}}
		}
		f, w := &fakePods{list: []corev1.Pod{*pod("a", "1")}}, newPodWatch()
		ctx, cancel := context.WithCancel(t.Context())
		go w.follow(ctx, f)
		want := func(count int) {
			t.Helper()
			synctest.Wait()
			if pods, err := w.pods(ctx); err != nil || len(pods) != count {
				t.Errorf("got %d pods and %v, want %d", len(pods), err, count)
			}
		}
		want(1)
		f.watch.Add(pod("b", "2"))
		want(2)
		f.watch.Delete(pod("a", "3"))
		want(1)
		f.fail(apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("may not watch")))
		f.watch.Stop()
		<-time.After(time.Minute)
		if pods, err := w.pods(ctx); !apierrors.IsForbidden(err) {
			t.Errorf("got %d pods and %v", len(pods), err)
		}
		f.fail(nil)
		<-time.After(time.Minute)
		want(1)
		cancel()
		synctest.Wait()
	})
}

// TestPodWatchBegins: a caller waits until the pods are known, but not longer than it may.
func TestPodWatchBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if pods, err := newPodWatch().pods(ctx); err == nil || err.Error() != "the API server has not sent all pods" || time.Since(began) != requestTimeout {
			t.Errorf("got %d pods and %v after %s", len(pods), err, time.Since(began))
		}
	})
}
