package openstack

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"

	"github.com/gophercloud/gophercloud/v2"
)

// pages are the buffers of long answers, used again by the next one.
var pages = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// keptPage is the largest buffer that is kept: a page of 1000 servers has 2 MB.
const keptPage = 4 << 20

// getPage reads a long answer in one piece and decodes it. gophercloud's json.Decoder grows a new buffer for each
// answer by doubling: for a page of 2 MB that is more memory than all that is decoded from it.
func getPage(ctx context.Context, client *gophercloud.ServiceClient, url string, into any) error {
	resp, err := client.Get(ctx, url, nil, &gophercloud.RequestOpts{KeepResponseBody: true})
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	buffer := pages.Get().(*bytes.Buffer) //nolint:forcetypeassert // the pool holds nothing else
	defer func() {
		if buffer.Cap() <= keptPage {
			pages.Put(buffer)
		}
	}()
	buffer.Reset()
	if 0 < resp.ContentLength && resp.ContentLength <= keptPage { // a longer one has to prove itself as it comes
		buffer.Grow(int(resp.ContentLength) + bytes.MinRead)
	}
	if _, err := buffer.ReadFrom(resp.Body); err != nil {
		return err
	}
	return json.Unmarshal(buffer.Bytes(), into)
}
