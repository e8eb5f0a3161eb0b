package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// followOwn follows the ConfigMaps with refvol's own reflectors, for one pod that nothing else is known of.
func followOwn(ctx context.Context, config *rest.Config, known *knowledge, count int) error {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	r := requests.New()
	httpClient.Transport = r.Wrap(httpClient.Transport, true)
	client, err := apiclient.New(config, httpClient)
	if err != nil {
		return err
	}
	// Nothing reads the objects again, so that only a long interval keeps their watches open.
	m, err := manager.New(manager.Options{Client: client, Requests: r, ResyncInterval: 24 * time.Hour})
	if err != nil {
		return err
	}
	pod := volume.Pod{Namespace: "bench", Name: "own", UID: "own"}
	m.Subscribe(func(_ volume.ServiceAccount, ref volume.Ref) {
		if obj, err := m.GetObject(pod, ref); err == nil {
			known.note(ref.Name, string(obj.Data[valueKey]))
		}
	})
	for i := range count {
		m.RegisterPod(pod, fmt.Sprint("volume-", i), []volume.Ref{object(i)})
	}
	go func() { _ = m.Run(ctx) }() // it fails only if it runs twice
	return nil
}
