package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/leak"
)

const (
	slots   = 6 // volumes of a worker, at most
	objects = 4 // of each kind, of a worker

	inPlace = "InPlace"
)

// worker has volumes and objects of its own, and one goroutine at a time.
type worker struct {
	*soak
	choose  *rand.Rand
	number  int
	volumes [slots]*published
	// values are what the objects hold, by name; one that is not there has none.
	values map[string]string

	publishes, updates, unpublishes int
}

// published is a volume of a ConfigMap and a Secret, each with a key of its own name.
type published struct {
	*harness.Volume
	objects [2]string
}

func newWorker(s *soak, number int) *worker {
	return &worker{
		soak:   s,
		choose: rand.New(rand.NewPCG(s.seed, uint64(number+1))),
		number: number,
		values: make(map[string]string),
	}
}

func (w *worker) object(kind string) string {
	return fmt.Sprintf("%s-%d-%d", kind, w.number, w.choose.IntN(objects))
}

// act does one random thing.
func (w *worker) act(ctx context.Context) error {
	slot := w.choose.IntN(slots)
	v := w.volumes[slot]
	switch action := w.choose.IntN(10); {
	case v == nil:
		return w.publish(ctx, slot)
	case action < 2:
		return w.unpublish(ctx, slot)
	case action < 3: // as the kubelet does after its own restart
		if err := w.plugin.Publish(ctx, v.Volume); err != nil {
			return fmt.Errorf("publish again: %w", err)
		}
		return w.check(ctx, v)
	}
	name, err := w.change(ctx)
	if err != nil {
		return err
	}
	for _, v := range w.volumes {
		if v != nil && slices.Contains(v.objects[:], name) {
			if err := w.check(ctx, v); err != nil {
				return fmt.Errorf("after a change of %s: %w", name, err)
			}
		}
	}
	return nil
}

func (w *worker) publish(ctx context.Context, slot int) error {
	configMap, secret := w.object("cm"), w.object("s")
	if _, ok := w.values[configMap]; !ok {
		if err := w.set(ctx, configMap); err != nil {
			return err
		}
	}
	strategy := []string{"Atomic", inPlace}[w.choose.IntN(2)]
	v := &published{
		Volume: harness.NewVolume(namespace, fmt.Sprintf("pod-%d-%d", w.number, slot), map[string]string{
			"sources":       fmt.Sprintf("- configMap: {name: %s}\n- secret: {name: %s, optional: true}\n", configMap, secret),
			"writeStrategy": strategy,
		}),
		objects: [2]string{configMap, secret},
	}
	v.Token, v.TokenInSecrets = harness.NewToken(), w.choose.IntN(2) == 0
	if err := w.plugin.Publish(ctx, v.Volume); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	w.publishes++
	w.volumes[slot] = v
	return w.check(ctx, v)
}

func (w *worker) unpublish(ctx context.Context, slot int) error {
	if err := w.plugin.Unpublish(ctx, w.volumes[slot].Volume); err != nil {
		return fmt.Errorf("unpublish: %w", err)
	}
	w.unpublishes++
	w.volumes[slot] = nil
	return nil
}

func (w *worker) drain(ctx context.Context) error {
	for slot, v := range w.volumes {
		if v != nil {
			if err := w.unpublish(ctx, slot); err != nil {
				return err
			}
		}
	}
	return nil
}

// meanwhile changes some objects.
func (w *worker) meanwhile(ctx context.Context) error {
	for range w.choose.IntN(2 * objects) {
		if _, err := w.change(ctx); err != nil {
			return err
		}
	}
	return nil
}

// change gives an object a new value, or removes one that may be missing.
func (w *worker) change(ctx context.Context) (name string, err error) {
	w.updates++
	if w.choose.IntN(2) == 0 {
		name = w.object("cm")
		return name, w.set(ctx, name)
	}
	name = w.object("s")
	if _, ok := w.values[name]; !ok || w.choose.IntN(4) > 0 {
		return name, w.set(ctx, name)
	}
	delete(w.values, name)
	return name, w.controlPlane.Client().CoreV1().Secrets(namespace).Delete(ctx, name, metav1.DeleteOptions{})
}

// set gives an object a new value, of a random length.
func (w *worker) set(ctx context.Context, name string) error {
	value := leak.Value + strconv.FormatUint(w.choose.Uint64(), 10) + string(make([]byte, w.choose.IntN(2000)))
	core, meta := w.controlPlane.Client().CoreV1(), metav1.ObjectMeta{Name: name}
	data := map[string]string{name: value}
	var err error
	if name[0] == 'c' {
		cm := &corev1.ConfigMap{ObjectMeta: meta, Data: data}
		if _, err = core.ConfigMaps(namespace).Update(ctx, cm, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
			_, err = core.ConfigMaps(namespace).Create(ctx, cm, metav1.CreateOptions{})
		}
	} else {
		s := &corev1.Secret{ObjectMeta: meta, StringData: data}
		if _, err = core.Secrets(namespace).Update(ctx, s, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
			_, err = core.Secrets(namespace).Create(ctx, s, metav1.CreateOptions{})
		}
	}
	if err == nil {
		w.values[name] = value
	}
	return err
}

// wanted returns what a volume has to show, by path.
func (w *worker) wanted(v *published) map[string]string {
	files := make(map[string]string)
	for _, name := range v.objects {
		if value, ok := w.values[name]; ok {
			files[name] = value
		}
	}
	return files
}

// check waits until a volume shows what its objects hold, and nothing else.
func (w *worker) check(ctx context.Context, v *published) error {
	want := w.wanted(v)
	return harness.Poll(ctx, within, pace, func() error {
		files, err := harness.Files(w.plugin.Target(v.Volume))
		if err != nil {
			return err
		}
		got := make(map[string]string)
		for path, f := range files {
			// With InPlace, the file of a key that is gone stays, and is empty.
			if f.Content != "" || v.Attributes["writeStrategy"] != inPlace {
				got[path] = f.Content
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("volume %s shows %d files, want %d, or other content", v.ID(), len(got), len(want))
		}
		return nil
	})
}
