package main

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	clientmetrics "k8s.io/client-go/tools/metrics"
	"k8s.io/component-base/version"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/csi"
	"github.com/refvol/refvol/pkg/metrics"
	"github.com/refvol/refvol/pkg/volume"
)

// newMetrics makes the metrics, and has client-go tell them of requests. client-go has one place for
// that in a process.
func newMetrics() *metrics.Metrics {
	m := metrics.New(version.Get())
	clientmetrics.Register(m.Client())
	return m
}

// observeCalls tells the metrics of CSI calls.
func observeCalls(m *metrics.Metrics) csi.Observer {
	return func(method string, code codes.Code, took time.Duration) { m.ObserveCall(method, code.String(), took) }
}

// observeReviews tells the metrics of access reviews.
func observeReviews(m *metrics.Metrics, ask authz.Ask) authz.Ask {
	return func(ctx context.Context, account volume.ServiceAccount, ref volume.Ref, verb string, token volume.Token) (bool, error) {
		allowed, err := ask(ctx, account, ref, verb, token)
		m.Reviewed(allowed, err)
		return allowed, err
	}
}
