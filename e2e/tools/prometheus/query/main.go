// Command query asks a Prometheus that has scraped some texts. It is for the tests of alerts and dashboards:
// Prometheus' own parser, store and engine work on what the plugin served. It reads what to ask from stdin and writes
// the instant vector of each query to stdout, both in JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// request is what to ask, and when: in seconds since the first moment.
type request struct {
	Scrapes []scrape
	Queries []string
	Seconds float64
}

// scrape is what a target with labels served at a moment.
type scrape struct {
	Seconds float64
	Labels  map[string]string
	Text    string
}

func main() {
	if err := run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "query:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	var r request
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	dir, err := os.MkdirTemp("", "refvol-query-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := tsdb.Open(dir, nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	start := time.Now().Add(-time.Hour)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	for _, s := range r.Scrapes {
		if err := store(ctx, db, s, at(s.Seconds)); err != nil {
			return fmt.Errorf("scrape at %v s: %w", s.Seconds, err)
		}
	}
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: parser.NewParser(parser.Options{}),
	})
	defer func() { err = errors.Join(err, engine.Close()) }()
	answers := make([]json.RawMessage, len(r.Queries))
	for i, text := range r.Queries {
		if answers[i], err = ask(ctx, engine, db, text, at(r.Seconds)); err != nil {
			return fmt.Errorf("query %s: %w", text, err)
		}
	}
	return json.NewEncoder(out).Encode(answers)
}

func ask(ctx context.Context, engine *promql.Engine, db storage.Queryable, text string, at time.Time) ([]byte, error) {
	query, err := engine.NewInstantQuery(ctx, db, nil, text, at)
	if err != nil {
		return nil, err
	}
	defer query.Close()
	vector, err := query.Exec(ctx).Vector()
	if err != nil {
		return nil, err
	}
	return json.Marshal(vector)
}

// store does what a scrape does, and adds the metric up.
func store(ctx context.Context, db storage.Appendable, s scrape, at time.Time) error {
	appender := db.Appender(ctx)
	p := textparse.NewPromParser([]byte(s.Text+"up 1\n"), labels.NewSymbolTable(), false)
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return appender.Commit()
		}
		if err == nil && entry == textparse.EntrySeries {
			var series labels.Labels
			p.Labels(&series)
			builder := labels.NewBuilder(series)
			for name, value := range s.Labels {
				builder.Set(name, value)
			}
			_, _, value := p.Series()
			_, err = appender.Append(0, builder.Labels(), at.UnixMilli(), value)
		}
		if err != nil {
			return errors.Join(err, appender.Rollback())
		}
	}
}
