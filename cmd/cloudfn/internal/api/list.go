package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
)

// Item is one thing as the API gave it, and what is known of it here.
type Item[T any] struct {
	Value T
	Raw   json.RawMessage
}

// largestPage is the most that a page may hold.
const largestPage = 1000

// List reads all pages of a list, or as many things as most says (0 = all). key is the list's name in the answer.
func List[T any](ctx context.Context, c *Client, path string, query url.Values, key string, most int) ([]Item[T], error) {
	return Select[T](ctx, c, path, query, key, most, nil)
}

// Select is List for those things that keep says (nil = all).
func Select[T any](ctx context.Context, c *Client, path string, query url.Values, key string, most int, keep func(T) bool) ([]Item[T], error) {
	if query == nil {
		query = url.Values{}
	}
	query.Set("limit", strconv.Itoa(largestPage))
	if most > 0 && most < largestPage && keep == nil {
		query.Set("limit", strconv.Itoa(most))
	}
	items := []Item[T]{}
	for next := path + "?" + query.Encode(); next != ""; {
		var page map[string]json.RawMessage
		if _, err := c.Get(ctx, next, nil, &page); err != nil {
			return nil, err
		}
		var found []json.RawMessage
		if err := json.Unmarshal(page[key], &found); err != nil {
			return nil, fmt.Errorf("%s gave no %s: %w", path, key, err)
		}
		for _, raw := range found {
			item := Item[T]{Raw: raw}
			if err := json.Unmarshal(raw, &item.Value); err != nil {
				return nil, fmt.Errorf("%s gave what is not in its description: %w", path, err)
			}
			if keep != nil && !keep(item.Value) {
				continue
			}
			if items = append(items, item); len(items) == most {
				return items, nil
			}
		}
		next = ""
		_ = json.Unmarshal(page["next"], &next) // null at the end
	}
	return items, nil
}

// One reads one thing.
func One[T any](ctx context.Context, c *Client, path string, query url.Values) (Item[T], error) {
	var item Item[T]
	if _, err := c.Get(ctx, path, query, &item.Raw); err != nil {
		return item, err
	}
	return item, item.read(path)
}

// Send is One for what changes something; body is nil when there is none. An answer without a body gives an empty Item.
func Send[T any](ctx context.Context, c *Client, method, path string, body any) (Item[T], Answer, error) {
	var item Item[T]
	answer, err := c.Do(ctx, method, path, body, &item.Raw)
	if err != nil || item.Raw == nil {
		return item, answer, err
	}
	return item, answer, item.read(path)
}

func (i *Item[T]) read(path string) error {
	if err := json.Unmarshal(i.Raw, &i.Value); err != nil {
		return fmt.Errorf("%s gave what is not in its description: %w", path, err)
	}
	return nil
}
